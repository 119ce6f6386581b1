#include "inference/row_split.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "ops/known_value.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"

namespace ortmodule {
namespace {

// Attributes from which the sizes of the output follow.
using OpAttr = std::pair<std::string_view, std::string_view>;
constexpr std::array<OpAttr, 4> kSizes = {OpAttr{"Reshape", "shape"}, OpAttr{"Expand", "shape"},
                                          OpAttr{"ConstantOfShape", "shape"},
                                          OpAttr{"Range", "limit"}};

SymbolValues sizes_of_one_row(const SymbolValues& sizes, const std::vector<std::string>& rows) {
  SymbolValues one_row;
  for (const auto& [symbol, value] : sizes.entries())
    one_row.bind(symbol, std::ranges::find(rows, symbol) == rows.end() ? value : 1);
  return one_row;
}

// Nodes that an output depends on: importing leaves others behind.
std::unordered_set<const Node*> live_nodes(const Graph& graph) {
  std::unordered_set<const Node*> live;
  std::vector<const Node*> reached;
  const auto reach = [&](const Value* value) {
    const Node* node = value ? value->producer() : nullptr;
    if (node && live.insert(node).second) reached.push_back(node);
  };
  for (const GraphOutput& output : graph.outputs()) reach(output.value);
  while (!reached.empty()) {
    const Node* node = reached.back();
    reached.pop_back();
    for (const Value* operand : node->inputs()) reach(operand);
  }
  return live;
}

double number_of(const Scalar& scalar, const SymbolValues& values) {
  const auto* size = std::get_if<DimExpr>(&scalar);
  return size ? static_cast<double>(size->evaluate(values)) : std::get<double>(scalar);
}

class Rows {
 public:
  Rows(const ImportedRows& model, const SymbolValues& sizes, RowSplit& split)
      : graph_(*model.graph),
        split_(split),
        one_row_(sizes_of_one_row(sizes, split.symbols)),
        numbers_(model.numbers) {}

  Reason follow() {
    for (const GraphInput& input : graph_.inputs()) {
      if (Reason reason = set(input.value, axis_of(*input.value))) return reason;
      split_.inputs.push_back(axes_.at(input.value));
    }
    const auto live = live_nodes(graph_);
    for (const auto& node : graph_.nodes())
      if (live.contains(node.get()))
        if (Reason reason = follow(*node)) return reason;
    for (const GraphOutput& output : graph_.outputs()) {
      split_.outputs.push_back(axes_.at(output.value));
      if (split_.outputs.back() == kWhole) return str("output '", output.value->name, "' has none");
      if (blocks_of(output.value) > 1) return str("rows meet in output '", output.value->name, "'");
      if (numbers_of(output.value).name_rows())
        return str("output '", output.value->name, "' has the numbers of the rows");
    }
    return {};
  }

 private:
  // The axis that scales with the rows; the first of several, which set() refuses.
  int axis_of(const Value& value) const {
    const auto& dims = value.dims;
    const auto found = std::find_if(dims.begin(), dims.end(), [&](const DimExpr& dim) {
      return scales_with(dim, split_.symbols);
    });
    return found == dims.end() ? kWhole : static_cast<int>(found - dims.begin());
  }

  bool mentions(const DimExpr& size) const {
    std::vector<std::string> names;
    size.collect_symbols(names);
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return std::ranges::find(split_.symbols, name) != split_.symbols.end();
    });
  }
  bool mentions(const Attr& attr) const {
    if (const auto* size = std::get_if<DimExpr>(&attr)) return mentions(*size);
    const auto* sizes = std::get_if<Dims>(&attr);
    return sizes && std::any_of(sizes->begin(), sizes->end(),
                                [&](const DimExpr& size) { return mentions(size); });
  }
  // Apart from the sizes of the output.
  bool mentions_otherwise(const Node& node) const {
    const auto& attrs = node.attrs.entries();
    return std::any_of(attrs.begin(), attrs.end(), [&](const auto& attr) {
      return std::ranges::find(kSizes, OpAttr{node.op, attr.first}) == kSizes.end() &&
             mentions(attr.second);
    });
  }

  Reason set(const Value* value, int axis) {
    for (size_t d = 0; d < value->dims.size(); ++d) {
      const bool right = static_cast<int>(d) == axis ? scales_with(value->dims[d], split_.symbols)
                                                     : !mentions(value->dims[d]);
      if (!right)
        return str("'", value->name, "' has size ", value->dims[d].text(), " in dimension ", d);
    }
    axes_[value] = axis;
    return {};
  }

  int known_axis(const Value* value) const {
    const auto found = value ? axes_.find(value) : axes_.end();
    return found == axes_.end() ? kWhole : found->second;
  }

  int64_t blocks_of(const Value* value) const {
    const auto found = value ? blocks_.find(value) : blocks_.end();
    return found == blocks_.end() ? 1 : found->second;
  }

  RowNumbers numbers_of(const Value* value) const {
    const auto found = value ? numbers_.find(value) : numbers_.end();
    if (found != numbers_.end()) return found->second;
    if (!value || !value->is_literal() || !is_integral(value->dtype)) return {};
    constexpr double kExact = 0x1p53;
    const double number = number_of(value->literal(), one_row_);
    if (!(std::abs(number) < kExact)) return {};
    return RowNumbers::between(static_cast<int64_t>(number), static_cast<int64_t>(number));
  }

  Reason follow(const Node& node) {
    std::vector<int> axes;
    std::vector<RowNumbers> numbers;
    std::vector<int64_t> blocks;
    for (const Value* operand : node.inputs()) {
      axes.push_back(known_axis(operand));
      const auto* number =
          operand && operand->is_literal() ? std::get_if<DimExpr>(&operand->literal()) : nullptr;
      if (number && mentions(*number)) return str(named(node), " computes with the number of rows");
      numbers.push_back(numbers_of(operand));
      blocks.push_back(blocks_of(operand));
    }
    if (mentions_otherwise(node)) return str(named(node), " depends on the number of rows");
    const RowQuery query{node, axes, numbers, blocks, split_.symbols, one_row_};
    const auto& outputs = node.outputs();
    const bool whole = query.all_whole() &&
                       std::all_of(outputs.begin(), outputs.end(),
                                   [&](const Value* output) { return axis_of(*output) == kWhole; });
    const RowAxes found = whole ? std::vector<int>(outputs.size(), kWhole) : row_axes(query);
    if (draws(node)) return str(named(node), " draws random numbers");
    if (!found) return str("rows meet in ", named(node));
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (Reason reason = set(outputs[i], found->at(i))) return reason;
      const std::optional<int64_t> of_output = row_blocks(query, found->at(i));
      if (!of_output) return str("rows meet in ", named(node));
      if (*of_output > 1) blocks_[outputs[i]] = *of_output;
    }
    const std::optional<RowNumbers> result = row_numbers(query);
    if (!result) return str(named(node), " computes with the numbers of the rows");
    if (result->are_bounded()) numbers_[node.output()] = *result;
    return {};
  }

  static bool draws(const Node& node) {
    const OpDef* def = find_op(node.op);
    return !def || def->random || is_impure(node);
  }
  static std::string named(const Node& node) {
    return node.origin.source.empty() ? str("a ", node.op) : node.origin.source;
  }

  const Graph& graph_;
  RowSplit& split_;
  SymbolValues one_row_;
  std::unordered_map<const Value*, int> axes_;
  std::unordered_map<const Value*, int64_t> blocks_;      // more than one
  std::unordered_map<const Value*, RowNumbers> numbers_;  // where they are known
};

}  // namespace

ImportedRows imported_rows(const Graph& graph, const std::vector<OnnxTensor>& weights) {
  ImportedRows rows{graph.clone(), {}};
  size_t weight = 0;
  for (const GraphInput& input : rows.graph->inputs()) {
    if (input.kind != InputKind::Constant) continue;
    if (const auto bounds = integer_bounds(weights.at(weight++)))
      rows.numbers[input.value] = RowNumbers::between(bounds->first, bounds->second);
  }
  return rows;
}

Reason find_row_split(const ImportedRows& model, const SymbolValues& sizes, RowSplit& split) {
  return Rows(model, sizes, split).follow();
}

}  // namespace ortmodule
