// Attributes of a node.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/dim_expr.h"
#include "base/dtype.h"

namespace ortmodule {

class Graph;

/// Integers are DimExpr, so that attributes such as a shape can be symbolic. Booleans are the
/// integers 0 and 1.
using Attr = std::variant<DimExpr, Dims, double, std::vector<double>, std::string, DType,
                          std::shared_ptr<const Graph>>;

/// Named attributes in order of insertion; equality ignores the order.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, Attr>> entries);

  bool has(std::string_view name) const { return find(name) != nullptr; }
  const Attr* find(std::string_view name) const;
  void set(std::string_view name, Attr value);
  void erase(std::string_view name);

  /// Typed access. Throws InternalError if of another type, or missing without a `fallback`.
  int64_t integer(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t fallback) const;
  bool flag(std::string_view name) const { return integer(name, 0) != 0; }
  const DimExpr& dim(std::string_view name) const;
  const Dims& dims(std::string_view name) const;
  std::vector<int64_t> integers(std::string_view name) const;
  double number(std::string_view name) const;
  double number(std::string_view name, double fallback) const;
  const std::vector<double>& numbers(std::string_view name) const;
  const std::string& string(std::string_view name) const;
  std::string string(std::string_view name, std::string_view fallback) const;
  DType dtype(std::string_view name) const;
  std::shared_ptr<const Graph> graph(std::string_view name) const;

  const std::vector<std::pair<std::string, Attr>>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }

  /// A copy with all size expressions evaluated.
  Attrs resolve(const SymbolValues& values) const;

  friend bool operator==(const Attrs& a, const Attrs& b);

 private:
  template <class T>
  const T& get(std::string_view name) const;

  std::vector<std::pair<std::string, Attr>> entries_;
};

}  // namespace ortmodule
