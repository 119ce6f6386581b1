// Which axes of an op's operands and outputs hold the rows of a batch, where rows do not meet: each
// row of the outputs depends on the same row of the operands. Such a graph can run some rows at a
// time.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace ortmodule {

/// In place of an axis: the tensor has no rows, and every row reads all of it.
inline constexpr int kWhole = -1;

/// Whether a size is a multiple of the number of rows, whatever that is.
bool scales_with(const DimExpr& size, const std::vector<std::string>& symbols);

/// A node whose operands' rows are known.
struct RowQuery {
  const Node& node;
  const std::vector<int>& axes;             // by operand; absent ones are whole
  const std::vector<std::string>& symbols;  // each is the number of rows

  int axis(size_t operand) const { return operand < axes.size() ? axes[operand] : kWhole; }
  int rank(size_t operand) const { return static_cast<int>(node.input(operand)->rank()); }
  const Dims& dims(size_t operand) const { return node.input(operand)->dims; }
  /// Attribute `name` as a non-negative axis of operand 0.
  int attr_axis(std::string_view name = "axis") const;
  bool all_whole() const;
  bool scales(const DimExpr& size) const { return scales_with(size, symbols); }
};

/// The axis of each output; nullopt where rows meet or the op cannot tell.
using RowAxes = std::optional<std::vector<int>>;
using RowAxesFn = RowAxes (*)(const RowQuery&);

/// What the op's own file has registered; for pointwise ops rows_elementwise().
RowAxes row_axes(const RowQuery& query);

// Rules of several ops.

/// Outputs are operands broadcast against each other, as in pointwise ops.
RowAxes rows_elementwise(const RowQuery& query);
/// Rows of operand 0 stay at their axis in every output, unless that is `meets`; other operands are
/// whole.
RowAxes rows_beside(const RowQuery& query, int meets);
/// The same for axes below `end`.
RowAxes rows_before(const RowQuery& query, int end);
template <int end>
RowAxes rows_before(const RowQuery& query) {
  return rows_before(query, end);
}
/// The same beside attribute `axis`, or for axes below it.
RowAxes rows_beside_axis(const RowQuery& query);
RowAxes rows_before_axis(const RowQuery& query);
/// Rows of a product that sums over the last axis of operand 0.
RowAxes rows_before_last(const RowQuery& query);

/// Registers the rule of an op at static initialization.
class RowAxesRegistrar {
 public:
  RowAxesRegistrar(std::initializer_list<std::string_view> ops, RowAxesFn rule);
};

}  // namespace ortmodule

#define ORTM_ROW_AXES_INNER(count, rule, ...) \
  static const ::ortmodule::RowAxesRegistrar row_axes_##count({__VA_ARGS__}, rule)
#define ORTM_ROW_AXES(count, rule, ...) ORTM_ROW_AXES_INNER(count, rule, __VA_ARGS__)
/// REGISTER_ROW_AXES(rule, "Softmax", "LogSoftmax");
#define REGISTER_ROW_AXES(rule, ...) ORTM_ROW_AXES(__COUNTER__, rule, __VA_ARGS__)
