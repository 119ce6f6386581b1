// Decisions on sizes while a model is imported. A model is imported for the sizes of a first call
// and stays symbolic; where a rule must decide, the sizes of that call do, and a guard records what
// the decision holds for.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/dim_expr.h"

namespace ortmodule {

/// `least <= expression <= most`
struct SizeGuard {
  DimExpr expression;
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t most = std::numeric_limits<int64_t>::max();

  bool holds(const SymbolValues& values) const {
    const int64_t value = expression.evaluate(values);
    return least <= value && value <= most;
  }
};

class SizeGuards {
 public:
  /// `hints`: the symbols' values in the first call.
  explicit SizeGuards(SymbolValues hints) : hints_(std::move(hints)) {}

  /// Adds a symbol. Throws Error if it has another value.
  void add_hint(const std::string& symbol, int64_t value) { hints_.bind(symbol, value); }
  /// The value in the first call; no guard.
  int64_t hint(const DimExpr& size) const { return size.evaluate(hints_); }

  /// The value in the first call, which later calls must have, too.
  int64_t fix(const DimExpr& size);
  bool equal(const DimExpr& a, const DimExpr& b);
  /// a <= b
  bool at_most(const DimExpr& a, const DimExpr& b);
  bool less(const DimExpr& a, const DimExpr& b) { return at_most(a + DimExpr(1), b); }

  const std::vector<SizeGuard>& guards() const { return guards_; }

 private:
  void add(SizeGuard guard);
  bool implied(const SizeGuard& guard) const;

  SymbolValues hints_;
  std::vector<SizeGuard> guards_;
};

}  // namespace ortmodule
