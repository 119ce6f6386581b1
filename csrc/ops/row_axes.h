// Which axes of an op's operands and outputs hold the rows of a batch, where rows do not meet: each
// row of the outputs depends on the same row of the operands. Such a graph can run some rows at a
// time. Indices that a model computes from the numbers of its rows, as `mask[row, key]` on a mask
// without dimensions apart, are followed as well: those of a part name the rows of the part.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
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

/// The integers of a tensor in terms of the rows: in row r each is r * stride + rest, with
/// begin <= rest < end. Tensors without rows have stride 0.
struct RowNumbers {
  static constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  int64_t stride = 0;
  int64_t begin = std::numeric_limits<int64_t>::min();  // no bound
  int64_t end = kAny;

  static RowNumbers between(int64_t least, int64_t most) {
    return most == kAny ? RowNumbers{} : RowNumbers{0, least, most + 1};
  }
  bool name_rows() const { return stride != 0; }
  bool are_bounded() const { return end != kAny; }
  bool are_one_number() const { return !name_rows() && are_bounded() && end - begin == 1; }
};

/// A node whose operands' rows are known.
struct RowQuery {
  const Node& node;
  const std::vector<int>& axes;             // by operand; absent ones are whole
  const std::vector<RowNumbers>& numbers;   // by operand
  const std::vector<int64_t>& blocks;       // by operand: see RowBlocksFn
  const std::vector<std::string>& symbols;  // each is the number of rows
  const SymbolValues& one_row;              // the sizes of a run of one row

  int axis(size_t operand) const { return operand < axes.size() ? axes[operand] : kWhole; }
  int rank(size_t operand) const { return static_cast<int>(node.input(operand)->rank()); }
  const Dims& dims(size_t operand) const { return node.input(operand)->dims; }
  /// Attribute `name` as a non-negative axis of operand 0.
  int attr_axis(std::string_view name = "axis") const;
  bool all_whole() const;
  bool scales(const DimExpr& size) const { return scales_with(size, symbols); }
  /// A size for each row, or one that does not depend on the rows.
  int64_t each(const DimExpr& size) const { return size.evaluate(one_row); }
};

/// The axis of each output; nullopt where rows meet or the op cannot tell.
using RowAxes = std::optional<std::vector<int>>;
using RowAxesFn = RowAxes (*)(const RowQuery&);

/// What the op's own file has registered; for pointwise ops rows_elementwise().
RowAxes row_axes(const RowQuery& query);

/// How many blocks the axis of output 0 has, of all rows each: in [time, batch, width] as a matrix
/// of time * batch rows there are `time` of them. `axis` is that of the output.
using RowBlocksFn = int64_t (*)(const RowQuery& query, int axis);

/// What the op's own file has registered; others keep the blocks of their operands, which must
/// agree. nullopt where they do not.
std::optional<int64_t> row_blocks(const RowQuery& query, int axis);

/// The elements of output 0; nullopt if the op computes with numbers of rows in another way.
using RowNumbersFn = std::optional<RowNumbers> (*)(const RowQuery&);

/// What the op's own file has registered; for other ops nullopt where an operand names rows.
std::optional<RowNumbers> row_numbers(const RowQuery& query);

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

/// Elements of operand 0 in another arrangement, or some of them.
std::optional<RowNumbers> numbers_of_operand(const RowQuery& query);

/// Registers the rule of an op at static initialization.
class RowAxesRegistrar {
 public:
  RowAxesRegistrar(std::initializer_list<std::string_view> ops, RowAxesFn rule);
};
class RowBlocksRegistrar {
 public:
  RowBlocksRegistrar(std::initializer_list<std::string_view> ops, RowBlocksFn rule);
};
class RowNumbersRegistrar {
 public:
  RowNumbersRegistrar(std::initializer_list<std::string_view> ops, RowNumbersFn rule);
};

}  // namespace ortmodule

#define ORTM_ROW_AXES_INNER(count, rule, ...) \
  static const ::ortmodule::RowAxesRegistrar row_axes_##count({__VA_ARGS__}, rule)
#define ORTM_ROW_AXES(count, rule, ...) ORTM_ROW_AXES_INNER(count, rule, __VA_ARGS__)
/// REGISTER_ROW_AXES(rule, "Softmax", "LogSoftmax");
#define REGISTER_ROW_AXES(rule, ...) ORTM_ROW_AXES(__COUNTER__, rule, __VA_ARGS__)

#define ORTM_ROW_BLOCKS_INNER(count, rule, ...) \
  static const ::ortmodule::RowBlocksRegistrar row_blocks_##count({__VA_ARGS__}, rule)
#define ORTM_ROW_BLOCKS(count, rule, ...) ORTM_ROW_BLOCKS_INNER(count, rule, __VA_ARGS__)
/// REGISTER_ROW_BLOCKS(reshape_blocks, "Reshape", "Squeeze");
#define REGISTER_ROW_BLOCKS(rule, ...) ORTM_ROW_BLOCKS(__COUNTER__, rule, __VA_ARGS__)

#define ORTM_ROW_NUMBERS_INNER(count, rule, ...) \
  static const ::ortmodule::RowNumbersRegistrar row_numbers_##count({__VA_ARGS__}, rule)
#define ORTM_ROW_NUMBERS(count, rule, ...) ORTM_ROW_NUMBERS_INNER(count, rule, __VA_ARGS__)
/// REGISTER_ROW_NUMBERS(numbers_of_operand, "Reshape", "Squeeze");
#define REGISTER_ROW_NUMBERS(rule, ...) ORTM_ROW_NUMBERS(__COUNTER__, rule, __VA_ARGS__)
