// The shapes that a plan is made for, and the key under which it is cached.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/make_plan.h"

namespace ortmodule {

/// Sizes and strides of an argument, in memory of the caller.
struct LayoutView {
  std::span<const int64_t> sizes;
  std::span<const int64_t> strides;
};

/// The shapes of a call: argument layouts by graph input, and symbol arguments in order.
struct CallShapes {
  std::span<const LayoutView> arguments;
  std::span<const int64_t> symbols;
};

/// Symbol values, then the sizes and strides of each argument, in one list. Ranks are fixed by the
/// graph, so in a session equal lists mean equal shapes.
class PlanKey {
 public:
  /// `is_planned`: by symbol argument, whether plans depend on it.
  PlanKey(const CallShapes& call, const std::vector<bool>& is_planned) {
    visit(call, is_planned, [&](std::span<const int64_t> part) {
      numbers_.insert(numbers_.end(), part.begin(), part.end());
      return true;
    });
  }

  /// Whether this is the key of `call`. Does not allocate.
  bool matches(const CallShapes& call, const std::vector<bool>& is_planned) const {
    std::span<const int64_t> left = numbers_;
    const bool is_prefix = visit(call, is_planned, [&](std::span<const int64_t> part) {
      if (left.size() < part.size() || !std::equal(part.begin(), part.end(), left.begin()))
        return false;
      left = left.subspan(part.size());
      return true;
    });
    return is_prefix && left.empty();
  }

  friend auto operator<=>(const PlanKey&, const PlanKey&) = default;

 private:
  /// Passes the parts of a key to `take`, in order, until it returns false.
  template <class Take>
  static bool visit(const CallShapes& call, const std::vector<bool>& is_planned, const Take& take) {
    for (size_t i = 0; i < call.symbols.size(); ++i)
      if (is_planned.at(i) && !take(call.symbols.subspan(i, 1))) return false;
    return std::ranges::all_of(call.arguments, [&](const LayoutView& layout) {
      return take(layout.sizes) && take(layout.strides);
    });
  }

  std::vector<int64_t> numbers_;
};

/// The shapes that a plan is made for.
struct Signature {
  PlanKey key;
  PlanRequest request;
};

}  // namespace ortmodule
