#include "quantization/model_parts.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "onnx/onnx_types.h"

namespace ortmodule {
namespace {

// Looks up the nodes and constants of the main graph.
class Parts {
 public:
  explicit Parts(const OnnxGraph& graph) {
    for (const OnnxNode& node : graph.nodes)
      for (const std::string& output : node.outputs) producers_.emplace(output, &node);
    for (const OnnxInitializer& initializer : graph.initializers)
      initializers_.emplace(initializer.name, &initializer);
  }

  const OnnxNode& node_of(const std::string& output) const {
    const auto found = producers_.find(output);
    if (found == producers_.end())
      throw Error(str("[quantization] a node must have the output asked for, but found none with '",
                      output, "'"));
    return *found->second;
  }

  const OnnxInitializer* initializer(const std::string& name) const {
    const auto found = initializers_.find(name);
    return found == initializers_.end() ? nullptr : found->second;
  }

  // The node that makes `name` of constants alone; null if it is no such value.
  const OnnxNode* constant_node(const std::string& name) const {
    static const std::set<std::string> moving = {"Constant", "Identity", "Transpose", "Cast"};
    const auto found = producers_.find(name);
    if (found == producers_.end() || moving.count(found->second->op) == 0) return nullptr;
    const OnnxNode& node = *found->second;
    const bool constant = std::all_of(
        node.inputs.begin(), node.inputs.end(),
        [&](const std::string& input) { return initializer(input) || constant_node(input); });
    return constant ? &node : nullptr;
  }

 private:
  std::unordered_map<std::string, const OnnxNode*> producers_;
  std::unordered_map<std::string, const OnnxInitializer*> initializers_;
};

void add_constant(const Parts& parts, const std::string& name, std::set<std::string>& done,
                  OnnxGraph& to) {
  if (name.empty() || !done.insert(name).second) return;
  if (const OnnxInitializer* initializer = parts.initializer(name)) {
    to.initializers.push_back(*initializer);
  } else if (const OnnxNode* node = parts.constant_node(name)) {
    for (const std::string& input : node->inputs) add_constant(parts, input, done, to);
    to.nodes.push_back(*node);
  }
}

OnnxType tensor_type(const ArrayType& array) {
  OnnxType type;
  type.kind = OnnxType::Kind::Tensor;
  type.element_type = array.element_type;
  type.dtype = onnx_dtype(array.element_type);
  type.dims.emplace();
  for (int64_t size : array.dims) type.dims->emplace_back(size);
  return type;
}

}  // namespace

void expose_values(OnnxModel& model, const std::vector<std::string>& names) {
  std::set<std::string> known, outputs;
  for (const OnnxValue& input : model.graph.inputs) known.insert(input.name);
  for (const OnnxNode& node : model.graph.nodes)
    known.insert(node.outputs.begin(), node.outputs.end());
  for (const OnnxValue& output : model.graph.outputs) outputs.insert(output.name);
  for (const std::string& name : names) {
    ORTM_CHECK(known.count(name) > 0,
               "[quantization] a value must be in the model's graph, but found '", name, "'");
    if (!outputs.insert(name).second) continue;
    OnnxValue value;
    value.name = name;
    for (const std::vector<OnnxValue>* list : {&model.graph.values, &model.graph.inputs})
      for (const OnnxValue& declared : *list)
        if (declared.name == name) value.type = declared.type;
    model.graph.outputs.push_back(std::move(value));
  }
}

size_t weight_bytes(const OnnxModel& model) {
  size_t total = 0;
  for (const OnnxInitializer& initializer : model.graph.initializers)
    total += initializer.tensor.size_bytes();
  return total;
}

std::vector<std::string> computed_inputs(const OnnxModel& model, const std::string& output) {
  const Parts parts(model.graph);
  std::vector<std::string> names;
  for (const std::string& input : parts.node_of(output).inputs)
    if (!input.empty() && !parts.initializer(input) && !parts.constant_node(input) &&
        std::find(names.begin(), names.end(), input) == names.end())
      names.push_back(input);
  return names;
}

OnnxModel cut_node(const OnnxModel& model, const std::string& output,
                   const std::map<std::string, ArrayType>& inputs) {
  const Parts parts(model.graph);
  const OnnxNode& node = parts.node_of(output);
  OnnxModel cut;
  cut.opsets = model.opsets;
  cut.ir_version = model.ir_version;
  cut.producer = model.producer;
  cut.graph.name = "node";
  std::set<std::string> done;
  for (const std::string& input : node.inputs) add_constant(parts, input, done, cut.graph);
  for (const auto& [name, type] : inputs) cut.graph.inputs.push_back({name, tensor_type(type)});
  cut.graph.nodes.push_back(node);
  for (const std::string& each : node.outputs)
    if (!each.empty()) cut.graph.outputs.push_back({each, OnnxType()});
  return cut;
}

}  // namespace ortmodule
