#include "inference/row_split.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"

namespace ortmodule {
namespace {

// Ops whose attribute `shape` is the sizes of the output.
constexpr std::array<std::string_view, 3> kShapedByAttrs = {"Reshape", "Expand", "ConstantOfShape"};

class Rows {
 public:
  Rows(const Graph& graph, RowSplit& split) : graph_(graph), split_(split) {}

  Reason follow() {
    for (const GraphInput& input : graph_.inputs()) {
      if (Reason reason = set(input.value, axis_of(*input.value))) return reason;
      split_.inputs.push_back(axes_.at(input.value));
    }
    for (const auto& node : graph_.nodes())
      if (Reason reason = follow(*node)) return reason;
    for (const GraphOutput& output : graph_.outputs()) {
      split_.outputs.push_back(axes_.at(output.value));
      if (split_.outputs.back() == kWhole) return str("output '", output.value->name, "' has none");
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
    const bool shaped = std::ranges::find(kShapedByAttrs, node.op) != kShapedByAttrs.end();
    const auto& attrs = node.attrs.entries();
    return std::any_of(attrs.begin(), attrs.end(), [&](const auto& attr) {
      return !(shaped && attr.first == "shape") && mentions(attr.second);
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

  Reason follow(const Node& node) {
    std::vector<int> axes;
    for (const Value* operand : node.inputs()) {
      axes.push_back(known_axis(operand));
      const auto* number =
          operand && operand->is_literal() ? std::get_if<DimExpr>(&operand->literal()) : nullptr;
      if (number && mentions(*number)) return str(named(node), " computes with the number of rows");
    }
    if (mentions_otherwise(node)) return str(named(node), " depends on the number of rows");
    const RowQuery query{node, axes, split_.symbols};
    const auto& outputs = node.outputs();
    const bool whole = query.all_whole() &&
                       std::all_of(outputs.begin(), outputs.end(),
                                   [&](const Value* output) { return axis_of(*output) == kWhole; });
    const RowAxes found = whole ? std::vector<int>(outputs.size(), kWhole) : row_axes(query);
    if (draws(node)) return str(named(node), " draws random numbers");
    if (!found) return str("rows meet in ", named(node));
    for (size_t i = 0; i < outputs.size(); ++i)
      if (Reason reason = set(outputs[i], found->at(i))) return reason;
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
  std::unordered_map<const Value*, int> axes_;
};

double number_of(const Scalar& scalar, const SymbolValues& values) {
  const auto* size = std::get_if<DimExpr>(&scalar);
  return size ? static_cast<double>(size->evaluate(values)) : std::get<double>(scalar);
}

Sizes sizes_of(const Value& value, const SymbolValues& values) {
  Sizes sizes;
  for (const DimExpr& dim : value.dims) sizes.push_back(dim.evaluate(values));
  return sizes;
}

}  // namespace

Reason find_row_split(const Graph& graph, RowSplit& split) { return Rows(graph, split).follow(); }

bool is_same_graph(const Graph& one, const SymbolValues& one_values, const Graph& other,
                   const SymbolValues& other_values) {
  if (one.nodes().size() != other.nodes().size() || one.inputs().size() != other.inputs().size())
    return false;
  std::unordered_map<const Value*, const Value*> same;
  for (size_t i = 0; i < one.inputs().size(); ++i)
    same[one.inputs()[i].value] = other.inputs()[i].value;
  const auto matches = [&](const Value* a, const Value* b) {
    if (!a || !b) return a == b;
    if (a->is_literal() && b->is_literal())
      return number_of(a->literal(), one_values) == number_of(b->literal(), other_values);
    const auto found = same.find(a);
    return found != same.end() && found->second == b;
  };
  auto node = other.nodes().begin();
  for (const auto& mine : one.nodes()) {
    const Node& theirs = **node++;
    if (mine->op != theirs.op || mine->outputs().size() != theirs.outputs().size() ||
        !std::ranges::equal(mine->inputs(), theirs.inputs(), matches) ||
        !(mine->attrs.resolve(one_values) == theirs.attrs.resolve(other_values)))
      return false;
    for (size_t i = 0; i < mine->outputs().size(); ++i) same[mine->output(i)] = theirs.output(i);
  }
  return std::ranges::equal(
      one.outputs(), other.outputs(), [&](const GraphOutput& a, const GraphOutput& b) {
        return matches(a.value, b.value) &&
               sizes_of(*a.value, one_values) == sizes_of(*b.value, other_values);
      });
}

}  // namespace ortmodule
