// A Scan of skl2onnx for nearest neighbours: its body computes the distances of all rows to one
// point, and each step takes the next point. It becomes one PowerDistances, for any number of
// points.
#include <optional>

#include "importer/importer.h"
#include "ops/emit.h"

namespace ortmodule {
namespace {

/// The body of a Scan, by name.
class Body {
 public:
  explicit Body(const OnnxGraph& graph) : graph_(graph) {}

  /// The node that computes a name, through Identity; null if it is another operator.
  const OnnxNode* maker(const std::string& name, std::string_view op, size_t operands) const {
    const OnnxNode* node = find(source(name));
    const bool fits = node && node->op == op && node->domain.empty();
    return fits && node->inputs.size() >= operands ? node : nullptr;
  }
  /// The name that a name is the same as.
  std::string source(std::string name) const {
    for (size_t steps = 0; steps < graph_.nodes.size(); ++steps) {
      const OnnxNode* node = find(name);
      if (!node || node->op != "Identity" || node->inputs.empty()) break;
      name = node->inputs[0];
    }
    return name;
  }
  /// The number that an initializer of one element has.
  std::optional<double> number(const std::string& name) const {
    for (const OnnxInitializer& each : graph_.initializers)
      if (each.name == name)
        if (const auto known = known_content(each.tensor);
            known && known->elements.size() == 1 && known->is_constant())
          return known->elements[0].value();
    return std::nullopt;
  }

 private:
  const OnnxNode* find(const std::string& name) const {
    for (const OnnxNode& node : graph_.nodes)
      if (!node.outputs.empty() && node.outputs[0] == name) return &node;
    return nullptr;
  }

  const OnnxGraph& graph_;
};

const OnnxAttr* find_attr(const OnnxNode& node, std::string_view name) {
  for (const auto& [key, value] : node.attrs)
    if (key == name) return &value;
  return nullptr;
}

/// Whether a reduction is over the last axis of a matrix, which it removes.
bool sums_rows(const Body& body, const OnnxNode& node) {
  const OnnxAttr* keeps = find_attr(node, "keepdims");
  const auto* keepdims = keeps ? std::get_if<int64_t>(keeps) : nullptr;
  if (!keepdims || *keepdims != 0) return false;
  std::optional<double> axis;
  if (const OnnxAttr* attr = find_attr(node, "axes")) {
    const auto* axes = std::get_if<std::vector<int64_t>>(attr);
    if (axes && axes->size() == 1) axis = static_cast<double>(axes->front());
  } else if (node.inputs.size() > 1) {
    axis = body.number(node.inputs[1]);
  }
  return axis && (*axis == 1 || *axis == -1);
}

/// The differences whose powers are added up, by name, and the power.
struct Sum {
  std::string differences;
  double power = 0;
};

std::optional<Sum> sum_of(const Body& body, const std::string& name) {
  if (const OnnxNode* squares = body.maker(name, "ReduceSumSquare", 1))
    return sums_rows(body, *squares) ? std::optional(Sum{squares->inputs[0], 2.0}) : std::nullopt;
  const OnnxNode* sum = body.maker(name, "ReduceSum", 1);
  if (!sum || !sums_rows(body, *sum)) return std::nullopt;
  if (const OnnxNode* size = body.maker(sum->inputs[0], "Abs", 1)) return Sum{size->inputs[0], 1.0};
  const OnnxNode* power = body.maker(sum->inputs[0], "Pow", 2);
  const OnnxNode* size = power ? body.maker(power->inputs[0], "Abs", 1) : nullptr;
  const std::optional<double> exponent = size ? body.number(power->inputs[1]) : std::nullopt;
  return exponent ? std::optional(Sum{size->inputs[0], *exponent}) : std::nullopt;
}

bool has_other_axes(const ControlCall& c) {
  for (const char* name :
       {"scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions"})
    for (int64_t each : c.integers(name))
      if (each != 0) return true;
  return false;
}

}  // namespace

std::optional<std::vector<ImportedRef>> import_distance_scan(const ControlCall& c) {
  const OnnxGraph& graph = c.subgraph("body");
  if (c.operands.size() != 2 || c.integer("num_scan_inputs", 0) != 1 || c.opset < 9 ||
      graph.inputs.size() != 2 || graph.outputs.size() != 2 || has_other_axes(c))
    return std::nullopt;
  const Body body(graph);
  const std::string &rows = graph.inputs[0].name, &point = graph.inputs[1].name;
  const std::optional<Sum> sum = sum_of(body, graph.outputs[1].name);
  const OnnxNode* sub = sum ? body.maker(sum->differences, "Sub", 2) : nullptr;
  if (!sub || body.source(graph.outputs[0].name) != rows) return std::nullopt;
  const std::string a = body.source(sub->inputs[0]), b = body.source(sub->inputs[1]);
  if (!(a == rows && b == point) && !(a == point && b == rows)) return std::nullopt;
  Value* x = c.importer.tensor_of(c.operand(0));
  Value* points = c.importer.tensor_of(c.operand(1));
  if (x->rank() != 2 || points->rank() != 2 || x->dtype != points->dtype ||
      (x->dtype != DType::Float32 && x->dtype != DType::Float64) ||
      !c.importer.sizes().equal(x->dims.at(1), points->dims.at(1)))
    return std::nullopt;
  Graph& made = c.importer.graph();
  const Dims turn{1, 0};
  Value* turned = emit(made, "Transpose", {points}, {{"perm", turn}});
  Value* distances = emit(made, "PowerDistances", {x, turned}, {{"p", sum->power}});
  return std::vector<ImportedRef>{
      c.operands[0], Importer::of_tensor(emit(made, "Transpose", {distances}, {{"perm", turn}}))};
}

}  // namespace ortmodule
