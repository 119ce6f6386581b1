#include "quantization/static_marks.h"

#include <algorithm>

#include "base/error.h"
#include "onnx/onnx_types.h"
#include "quantization/static_scales.h"

namespace ortmodule {
namespace {

bool is_one_of(const std::string& name, const std::set<std::string>& names) {
  return names.count(name) > 0;
}

bool is_real(int element_type) { return element_type == 1 || element_type == 10; }

std::string text_attr(const OnnxNode& node, std::string_view name, std::string fallback) {
  const OnnxAttr* attr = find_attr(node, name);
  const auto* value = attr ? std::get_if<std::string>(attr) : nullptr;
  return value ? *value : fallback;
}

}  // namespace

const std::set<std::string>& static_op_types() {
  static const std::set<std::string> types = {"Add",
                                              "ArgMax",
                                              "AveragePool",
                                              "BatchNormalization",
                                              "Clip",
                                              "Concat",
                                              "Conv",
                                              "ConvTranspose",
                                              "CumSum",
                                              "EmbedLayerNormalization",
                                              "Flatten",
                                              "Gather",
                                              "GatherElements",
                                              "Gemm",
                                              "GlobalAveragePool",
                                              "InstanceNormalization",
                                              "LayerNormalization",
                                              "LeakyRelu",
                                              "MatMul",
                                              "MaxPool",
                                              "Mul",
                                              "Pad",
                                              "Relu",
                                              "Reshape",
                                              "Resize",
                                              "Sigmoid",
                                              "Slice",
                                              "Softmax",
                                              "Split",
                                              "Squeeze",
                                              "TopK",
                                              "Transpose",
                                              "Unsqueeze",
                                              "Where"};
  return types;
}

bool is_selected(const OnnxNode& node, const StaticQuantization& options) {
  const std::set<std::string>& types =
      options.op_types.empty() ? static_op_types() : options.op_types;
  const std::string domain = node.op == "EmbedLayerNormalization" ? "com.microsoft" : "";
  return node.domain == domain && is_one_of(node.op, types) && node.op != "QuantizeLinear" &&
         node.op != "DequantizeLinear" && !is_one_of(node.name, options.nodes_to_exclude) &&
         (options.nodes_to_quantize.empty() || is_one_of(node.name, options.nodes_to_quantize));
}

StaticMarks::StaticMarks(OnnxModel& model, const StaticQuantization& options,
                         const ValueRanges* ranges)
    : model_(model),
      options_(options),
      ranges_(ranges),
      types_(model.graph, nullptr),
      finite_(options, ranges),
      names_(model),
      opset_(standard_opset(model)),
      scalars_(scalar_constants(model.graph)) {
  OnnxGraph& graph = model.graph;
  for (size_t i = 0; i < graph.initializers.size(); ++i)
    initializers_.emplace(graph.initializers[i].name, i);
  for (const OnnxValue& input : graph.inputs) inputs_.insert(input.name);
  for (const OnnxValue& output : graph.outputs) outputs_.insert(output.name);
  for (OnnxNode& node : graph.nodes) {
    if (!is_selected(node, options)) continue;
    const size_t before = values.size() + biases.size();
    const auto rule = rules().find(node.op);
    if (rule == rules().end())
      all_values(node);
    else
      (this->*rule->second)(node);
    NodeReport row{node.name, node.op, node.outputs.empty() ? "" : node.outputs[0]};
    row.quantized = values.size() + biases.size() > before || removed_.count(&node) > 0 ||
                    (!node.inputs.empty() && is_marked(node.inputs[0]));
    if (!row.quantized) row.note = "its operands are not quantized";
    report.nodes.push_back(std::move(row));
  }
  std::erase_if(graph.nodes, [&](const OnnxNode& node) { return removed_.count(&node) > 0; });
}

const std::map<std::string, void (StaticMarks::*)(OnnxNode&)>& StaticMarks::rules() {
  using Marks = StaticMarks;
  static const std::map<std::string, void (Marks::*)(OnnxNode&)> all = {
      {"Conv", &Marks::conv},
      {"ConvTranspose", &Marks::conv},
      {"Gemm", &Marks::gemm},
      {"MatMul", &Marks::matmul},
      {"Clip", &Marks::removable},
      {"Relu", &Marks::removable},
      {"Reshape", &Marks::direct},
      {"Transpose", &Marks::direct},
      {"Squeeze", &Marks::direct},
      {"Unsqueeze", &Marks::direct},
      {"Flatten", &Marks::direct},
      {"AveragePool", &Marks::direct},
      {"Slice", &Marks::direct},
      {"TopK", &Marks::direct},
      {"Resize", &Marks::resize},
      {"MaxPool", &Marks::max_pool},
      {"Pad", &Marks::pad},
      {"Split", &Marks::split},
      {"Gather", &Marks::gather},
      {"GatherElements", &Marks::gather},
      {"Where", &Marks::where},
      {"InstanceNormalization", &Marks::normalization},
      {"LayerNormalization", &Marks::normalization},
      {"BatchNormalization", &Marks::normalization}};
  return all;
}

const OnnxTensor* StaticMarks::initializer(const std::string& name) const {
  const auto found = initializers_.find(name);
  return found == initializers_.end() ? nullptr : &model_.graph.initializers[found->second].tensor;
}

bool StaticMarks::is_quantizable(const std::string& name) const {
  return !name.empty() && is_real(types_.of(name));
}

// What has none stays in float32 and is told once.
bool StaticMarks::has_scale(const std::string& name) {
  const std::string& why = finite_.obstacle(name, initializer(name));
  if (!why.empty() && unscaled_.insert(name).second)
    report.notes.push_back(str("'", name, "' stays float32: ", why));
  return why.empty();
}

bool StaticMarks::is_marked(const std::string& name) const {
  return values.count(name) > 0 ||
         std::any_of(biases.begin(), biases.end(),
                     [&](const MarkedBias& bias) { return bias.name == name; });
}

// The first mark of a value stays, unless a later one shares a scale or has an axis.
void StaticMarks::mark(const std::string& name, MarkedValue how) {
  if (!is_quantizable(name)) return;
  // Another value's scale needs no range of its own.
  if (how.shares.empty() && !has_scale(name)) return;
  const bool is_new = values.count(name) == 0;
  if (is_new) order.push_back(name);
  if (is_new || !how.shares.empty() || how.axis >= 0) values[name] = std::move(how);
}

void StaticMarks::mark_weight(const std::string& name, int64_t axis, const std::string& op) {
  const OnnxTensor* tensor = initializer(name);
  int chosen = -1;
  // What is given for the weight says its axis, or that it has none.
  if (options_.per_channel && tensor && options_.overrides.count(name) == 0) {
    const auto given = options_.axis_by_op.find(op);
    if (given != options_.axis_by_op.end()) axis = given->second;
    const auto rank = static_cast<int64_t>(tensor->dims.size());
    if (axis < 0) axis += rank;
    if (axis >= 0 && axis < rank) chosen = static_cast<int>(axis);
  }
  mark(name, {true, chosen});
}

void StaticMarks::mark_same(const std::string& output, const std::string& input) {
  mark(output, {false, -1, input});
}

void StaticMarks::mark_bias(OnnxNode& node, size_t index, double beta) {
  const std::string name = input_of(node, index);
  const OnnxTensor* tensor = initializer(name);
  if (!tensor || !is_quantizable(name) || !has_scale(name)) return;
  if (options_.overrides.count(name) > 0) return mark(name, {true});
  std::string own = name;
  const bool taken = std::any_of(biases.begin(), biases.end(),
                                 [&](const MarkedBias& bias) { return bias.name == name; });
  if (taken) {  // its scale depends on the node, so each node has its own
    for (int i = 0; names_.has(own); ++i) own = str(name, i);
    own = names_.fresh(own);
    initializers_.emplace(own, model_.graph.initializers.size());
    model_.graph.initializers.push_back({own, OnnxTensor(*tensor)});
    node.inputs[index] = own;
  }
  biases.push_back({own, node.inputs[0], node.inputs[1], beta, node.outputs[0]});
}

// ---- rules -------------------------------------------------------------------------------------

void StaticMarks::all_values(OnnxNode& node) {
  for (const std::string& input : node.inputs) mark_activation(input);
  if (!keeps_output(node)) return;
  for (const std::string& output : node.outputs) mark_activation(output);
}

void StaticMarks::conv(OnnxNode& node) {
  if (node.inputs.size() < 2) return;
  mark_activation(node.inputs[0]);
  if (keeps_output(node)) mark_activation(node.outputs[0]);
  mark_weight(node.inputs[1], node.op == "Conv" ? 0 : 1, "");
  if (node.inputs.size() == 3) mark_bias(node, 2, 1.0);
}

void StaticMarks::gemm(OnnxNode& node) {
  if (node.inputs.size() < 2) return;
  mark_activation(node.inputs[0]);
  if (keeps_output(node)) mark_activation(node.outputs[0]);
  mark_weight(node.inputs[1], integer_attr(node, "transB", 0) > 0 ? 0 : 1, "");
  if (input_of(node, 2).empty() || !initializer(node.inputs[2])) return;
  mark_bias(node, 2, number_attr(node, "beta", 1.0));
}

void StaticMarks::matmul(OnnxNode& node) {
  for (const std::string& input : node.inputs) {
    if (initializer(input))
      mark_weight(input, 1, node.op);
    else
      mark_activation(input);
  }
  if (keeps_output(node)) mark_activation(node.outputs[0]);
}

// Quantizing the result does what the node does, if the result is quantized.
bool StaticMarks::changes_nothing(const OnnxNode& node) {
  const std::string& output = node.outputs[0];
  if (!ranges_ || !keeps_output(node) || !is_quantizable(output) || !has_scale(output))
    return false;
  TensorOverride given;
  if (const auto found = options_.overrides.find(output); found != options_.overrides.end())
    given = found->second[0];
  const auto range = ranges_->find(output);
  return quantizing_limits(
      node,
      scale_of_value(given, range == ranges_->end() ? ValueRanges::mapped_type() : range->second,
                     onnx_dtype(types_.of(output)), options_),
      scalars_);
}

// The operand's range is that of the result already, so that the node changes nothing.
bool StaticMarks::take_output(const std::string& operand, const std::string& output) {
  if (!ranges_ || ranges_->count(output) == 0 || ranges_->count(operand) == 0) return false;
  if (is_one_of(operand, outputs_) || is_one_of(operand, inputs_)) return false;
  size_t readers = 0;
  OnnxNode* producer = nullptr;
  for (OnnxNode& node : model_.graph.nodes) {
    if (removed_.count(&node) > 0) continue;
    readers += static_cast<size_t>(std::count(node.inputs.begin(), node.inputs.end(), operand));
    readers += outer_values(node).count(operand);
    if (std::find(node.outputs.begin(), node.outputs.end(), operand) != node.outputs.end())
      producer = &node;
  }
  if (readers != 1 || !producer) return false;
  std::replace(producer->outputs.begin(), producer->outputs.end(), operand, output);
  values.erase(operand);
  std::erase(order, operand);
  return true;
}

void StaticMarks::removable(OnnxNode& node) {
  if (node.inputs.empty() || !is_marked(node.inputs[0])) return;
  const std::string operand = node.inputs[0];
  if (!options_.activation_symmetric && !options_.keep_removable && changes_nothing(node) &&
      take_output(operand, node.outputs[0]))
    removed_.insert(&node);
  else
    mark_activation(operand);
  if (keeps_output(node)) mark_activation(node.outputs[0]);
}

void StaticMarks::direct(OnnxNode& node) {
  if (node.inputs.empty()) return;
  if (options_.force_direct) mark_activation(node.inputs[0]);
  if (keeps_output(node) && (options_.force_direct || is_marked(node.inputs[0])))
    mark_same(node.outputs[0], node.inputs[0]);
}

void StaticMarks::direct_since(OnnxNode& node, int64_t opset) {
  if (opset_ >= opset) direct(node);
}

std::optional<double> StaticMarks::pad_value(const OnnxNode& node) const {
  if (opset_ < 11) return number_attr(node, "value", 0.0);
  if (input_of(node, 2).empty()) return 0.0;
  const auto found = scalars_.find(node.inputs[2]);
  return found == scalars_.end() ? std::nullopt : std::optional(found->second);
}

void StaticMarks::pad(OnnxNode& node) {
  for (const std::string& input : node.inputs) mark_activation(input);
  if (!keeps_output(node)) return;
  const std::string mode = text_attr(node, "mode", "constant");
  const bool of_input = mode == "reflect" || mode == "edge" || mode == "wrap" ||
                        (mode == "constant" && pad_value(node) == 0.0);
  if (of_input)
    mark_same(node.outputs[0], node.inputs[0]);
  else
    mark_activation(node.outputs[0]);
}

void StaticMarks::split(OnnxNode& node) {
  if (!is_marked(node.inputs[0])) mark_activation(node.inputs[0]);
  if (!keeps_output(node)) return;
  for (const std::string& output : node.outputs) mark_same(output, node.inputs[0]);
}

void StaticMarks::gather(OnnxNode& node) {
  const bool constant = initializer(node.inputs[0]) && is_quantizable(node.inputs[0]);
  if (constant || options_.force_direct) mark_activation(node.inputs[0]);
  if (is_marked(node.inputs[0])) mark_same(node.outputs[0], node.inputs[0]);
}

void StaticMarks::where(OnnxNode& node) {
  if (node.inputs.size() != 3) return;
  if (options_.force_direct)
    for (size_t i : {1, 2}) mark_activation(node.inputs[i]);
  if (keeps_output(node) && is_marked(node.inputs[1]) && is_marked(node.inputs[2]))
    mark_activation(node.outputs[0]);
}

void StaticMarks::normalization(OnnxNode& node) {
  if (node.inputs.size() < 2) return;
  mark_activation(node.inputs[0]);
  if (initializer(node.inputs[1]))
    mark_weight(node.inputs[1], 1, node.op);
  else
    mark_activation(node.inputs[1]);
  if (!input_of(node, 2).empty()) mark_bias(node, 2, 1.0);
  if (!keeps_output(node)) return;
  for (const std::string& output : node.outputs) mark_activation(output);
}

}  // namespace ortmodule
