#include "ops/row_axes.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "ops/op_def.h"

namespace ortmodule {
namespace {

std::unordered_map<std::string_view, RowAxesFn>& rules() {
  static std::unordered_map<std::string_view, RowAxesFn> all;
  return all;
}

std::unordered_map<std::string_view, RowNumbersFn>& number_rules() {
  static std::unordered_map<std::string_view, RowNumbersFn> all;
  return all;
}

std::unordered_map<std::string_view, RowBlocksFn>& block_rules() {
  static std::unordered_map<std::string_view, RowBlocksFn> all;
  return all;
}

// The axis in a tensor of `rank` that is broadcast with axis `axis` of one of rank `from`.
int aligned(int axis, int from, int rank) { return axis + rank - from; }

}  // namespace

RowAxesRegistrar::RowAxesRegistrar(std::initializer_list<std::string_view> ops, RowAxesFn rule) {
  for (std::string_view op : ops) rules().emplace(op, rule);
}

RowBlocksRegistrar::RowBlocksRegistrar(std::initializer_list<std::string_view> ops,
                                       RowBlocksFn rule) {
  for (std::string_view op : ops) block_rules().emplace(op, rule);
}

RowNumbersRegistrar::RowNumbersRegistrar(std::initializer_list<std::string_view> ops,
                                         RowNumbersFn rule) {
  for (std::string_view op : ops) number_rules().emplace(op, rule);
}

int RowQuery::attr_axis(std::string_view name) const {
  const auto axis = static_cast<int>(node.attrs.integer(name));
  return axis < 0 ? axis + rank(0) : axis;
}

bool RowQuery::all_whole() const {
  return std::all_of(axes.begin(), axes.end(), [](int axis) { return axis == kWhole; });
}

bool scales_with(const DimExpr& size, const std::vector<std::string>& symbols) {
  std::vector<std::pair<std::string, DimExpr>> twice;
  for (const std::string& symbol : symbols)
    twice.emplace_back(symbol, DimExpr(2) * DimExpr::symbol(symbol));
  return !size.is_constant() && size.substitute(twice) == DimExpr(2) * size;
}

RowAxes row_axes(const RowQuery& query) {
  const auto rule = rules().find(query.node.op);
  if (rule != rules().end()) return rule->second(query);
  const OpDef* def = find_op(query.node.op);
  if (!def || def->kind != OpKind::Pointwise || def->random || is_impure(query.node))
    return std::nullopt;
  return rows_elementwise(query);
}

std::optional<int64_t> row_blocks(const RowQuery& query, int axis) {
  if (axis == kWhole) return 1;
  const auto rule = block_rules().find(query.node.op);
  if (rule != block_rules().end()) return rule->second(query, axis);
  std::optional<int64_t> found;
  for (size_t i = 0; i < query.axes.size(); ++i) {
    if (query.axes[i] == kWhole) continue;
    // Numbers of rows are those of a single block.
    if (query.blocks[i] > 1 && query.numbers[i].name_rows()) return std::nullopt;
    if (found && *found != query.blocks[i]) return std::nullopt;
    found = query.blocks[i];
  }
  return found.value_or(1);
}

std::optional<RowNumbers> row_numbers(const RowQuery& query) {
  const auto rule = number_rules().find(query.node.op);
  if (rule != number_rules().end()) return rule->second(query);
  const bool named = std::any_of(query.numbers.begin(), query.numbers.end(),
                                 [](const RowNumbers& numbers) { return numbers.name_rows(); });
  return named ? std::nullopt : std::optional(RowNumbers{});
}

std::optional<RowNumbers> numbers_of_operand(const RowQuery& query) { return query.numbers.at(0); }

RowAxes rows_elementwise(const RowQuery& query) {
  const auto rank = static_cast<int>(query.node.output()->rank());
  int found = kWhole;
  for (size_t i = 0; i < query.node.inputs().size(); ++i) {
    if (!query.node.input(i) || query.axis(i) == kWhole) continue;
    const int axis = aligned(query.axis(i), query.rank(i), rank);
    if (found != kWhole && axis != found) return std::nullopt;
    found = axis;
  }
  return std::vector<int>(query.node.outputs().size(), found);
}

RowAxes rows_beside(const RowQuery& query, int meets) {
  for (size_t i = 1; i < query.node.inputs().size(); ++i)
    if (query.axis(i) != kWhole) return std::nullopt;
  if (query.axis(0) == kWhole || query.axis(0) == meets) return std::nullopt;
  return std::vector<int>(query.node.outputs().size(), query.axis(0));
}

RowAxes rows_before(const RowQuery& query, int end) {
  return query.axis(0) < end ? rows_beside(query, kWhole) : std::nullopt;
}

RowAxes rows_beside_axis(const RowQuery& query) { return rows_beside(query, query.attr_axis()); }

RowAxes rows_before_axis(const RowQuery& query) { return rows_before(query, query.attr_axis()); }

RowAxes rows_before_last(const RowQuery& query) { return rows_before(query, query.rank(0) - 1); }

}  // namespace ortmodule
