#include "quantization/qoperator_quantizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "quantization/static_marks.h"

namespace ortmodule {
namespace {

constexpr const char* kMicrosoft = "com.microsoft";
constexpr int64_t kAxisOpset = 13;  // of DequantizeLinear

template <class T>
OnnxTensor tensor_of(DType dtype, std::vector<int64_t> sizes, const std::vector<T>& values) {
  return {dtype, std::move(sizes),
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
}

std::map<std::string, QOperatorRule, std::less<>>& rules() {
  static std::map<std::string, QOperatorRule, std::less<>> all;
  return all;
}

}  // namespace

QOperatorRegistrar::QOperatorRegistrar(QOperatorRule rule,
                                       std::initializer_list<std::string_view> operators) {
  for (std::string_view op : operators)
    ORTM_ASSERT(rules().emplace(op, rule).second, "an operator has two rules of integers");
}

bool refuse(NodeReport& report, std::string why) {
  report.note = std::move(why);
  return false;
}

QOperatorQuantizer::QOperatorQuantizer(OnnxModel& model, const StaticQuantization& options,
                                       ValueRanges& ranges)
    : model_(model),
      options_(options),
      scales_(model, options, ranges),
      types_(model.graph, nullptr),
      names_(model),
      opset_(standard_opset(model)),
      scalars_(scalar_constants(model.graph)),
      finite_(options, &scales_.ranges()) {
  for (const OnnxInitializer& each : model.graph.initializers)
    initializers_.emplace(each.name, each.tensor);
  for (const OnnxValue& input : model.graph.inputs)
    if (!initializer(input.name)) available_.insert(input.name);
}

QuantizationReport QOperatorQuantizer::run() {
  std::vector<OnnxNode> nodes = std::exchange(model_.graph.nodes, {});
  for (OnnxNode& node : nodes) process(std::move(node));
  for (const OnnxValue& output : model_.graph.outputs) keep(output.name);
  add_biases();
  add_constants();
  model_.graph.nodes = std::move(first_);
  for (OnnxNode& node : made_) model_.graph.nodes.push_back(std::move(node));
  return std::move(report_);
}

void QOperatorQuantizer::process(OnnxNode node) {
  for (const std::string& name : outer_values(node)) keep(name);
  if (is_selected(node, options_)) {
    report_.nodes.push_back({node.name, node.op, node.outputs.empty() ? "" : node.outputs[0]});
    NodeReport& row = report_.nodes.back();
    const auto rule = rules().find(node.op);
    row_ = &row;
    row.quantized = rule == rules().end() ? refuse(row, "it has no form with integers")
                                          : rule->second(*this, node, row);
    row_ = nullptr;
    if (row.quantized) return;
  }
  for (const std::string& input : node.inputs) keep(input);
  emit(std::move(node));
}

// ---- values ------------------------------------------------------------------------------------

const OnnxTensor* QOperatorQuantizer::initializer(const std::string& name) const {
  const auto found = initializers_.find(name);
  return found == initializers_.end() ? nullptr : &found->second;
}

const QuantizedValue* QOperatorQuantizer::known(const std::string& name) const {
  const auto found = known_.find(name);
  return found == known_.end() ? nullptr : &found->second;
}

bool QOperatorQuantizer::has_scale(const std::string& name) const {
  if (const QuantizedValue* value = known(name)) return value->axis < 0;
  return is_float(name) && finite_.obstacle(name, initializer(name)).empty();
}

bool QOperatorQuantizer::has_scales(const std::string& name, const ConstantRule& rule) const {
  const QuantizedValue* value = known(name);
  const OnnxTensor* tensor = initializer(name);
  if (tensor && rule.axis >= static_cast<int>(tensor->dims.size())) return false;
  return has_scale(name) || (value && value->axis == rule.axis);
}

bool QOperatorQuantizer::has_own_scale(const std::string& name) const {
  const QuantizedValue* value = known(name);
  const auto own = described_.find(name);
  return value && own != described_.end() && own->second.scale == value->scale;
}

bool QOperatorQuantizer::quantizing_limits(const OnnxNode& node) const {
  return ortmodule::quantizing_limits(node, scale_of(node.outputs[0]), scalars_);
}

QuantizedScale QOperatorQuantizer::scale_by_name(const std::string& scale) const {
  const auto found = by_name_.find(scale);
  if (found != by_name_.end()) return found->second;
  return constants_.at(constant_by_scale_.at(scale)).scales.how.scales.front();
}

QuantizedValue QOperatorQuantizer::activation(const std::string& name) {
  if (const QuantizedValue* value = known(name)) return *value;
  if (const OnnxTensor* tensor = initializer(name)) {
    ConstantRule rule{options_.activation_type};
    rule.symmetric = options_.activation_type == options_.weight_type
                         ? options_.weight_symmetric
                         : options_.activation_symmetric;
    return constant(name, *tensor, rule);
  }
  const QuantizedValue value = described(name, scales_.of_value(name));
  emit(make_node("QuantizeLinear", {name, value.scale, value.zero_point}, {value.data},
                 name + "_QuantizeLinear"));
  known_.emplace(name, value);
  return value;
}

ConstantRule QOperatorQuantizer::weight_rule(int axis, bool reduce_range) const {
  return {options_.weight_type, options_.per_channel ? axis : -1, options_.weight_symmetric,
          reduce_range && options_.reduce_range};
}

QuantizedValue QOperatorQuantizer::weight(const std::string& name, const ConstantRule& rule) {
  if (known(name) || !initializer(name)) return activation(name);
  return constant(name, *initializer(name), rule);
}

QuantizedValue QOperatorQuantizer::constant(const std::string& name, const OnnxTensor& tensor,
                                            const ConstantRule& rule) {
  Constant made;
  made.scales = scales_.of_constant(name, tensor, rule);
  made.value = {fresh(name + "_quantized"), fresh(name + "_scale"), fresh(name + "_zero_point"),
                made.scales.axis, true};
  made.report = std::make_shared<WeightReport>();
  made.report->name = name;
  if (row_) row_->weights.push_back(made.report);
  constant_by_scale_.emplace(made.value.scale, name);
  known_.emplace(name, made.value);
  return constants_.emplace(name, std::move(made)).first->second.value;
}

QuantizedValue QOperatorQuantizer::described(const std::string& name, const ValueScale& scale) {
  const auto found = described_.find(name);
  if (found != described_.end()) return found->second;
  const QuantizedValue value{fresh(name + "_quantized"), fresh(name + "_scale"),
                             fresh(name + "_zero_point")};
  const QuantizedWeight how{scale.type, {scale.scale}, {}};
  add_initializer(value.scale, scale_tensor(how, DType::Float32, {}));
  add_initializer(value.zero_point, zero_point_tensor(how, {}));
  by_name_.emplace(value.scale, scale.scale);
  return described_.emplace(name, value).first->second;
}

QuantizedValue QOperatorQuantizer::result(const OnnxNode& node, size_t index,
                                          std::optional<QuantizedScale> fixed) {
  const std::string& name = node.outputs[index];
  const ValueScale scale =
      fixed ? ValueScale{options_.activation_type, *fixed} : scales_.of_value(name);
  return known_[name] = described(name, scale);
}

QuantizedValue QOperatorQuantizer::result_like(const OnnxNode& node, const QuantizedValue& other,
                                               size_t index, const char* suffix) {
  const std::string& name = node.outputs[index];
  return known_[name] = {fresh(name + suffix), other.scale, other.zero_point};
}

void QOperatorQuantizer::keep(const std::string& name) {
  const QuantizedValue* value = known(name);
  if (!value || available_.count(name) > 0) return;
  OnnxNode node = make_node("DequantizeLinear", {value->data, value->scale, value->zero_point},
                            {name}, name + "_DequantizeLinear");
  if (value->axis >= 0) {
    node.attrs.emplace_back("axis", int64_t{value->axis});
    if (opset_ < kAxisOpset) node.domain = kMicrosoft;
  }
  available_.insert(name);
  (value->is_constant ? first_ : made_).push_back(std::move(node));
}

// ---- changes -----------------------------------------------------------------------------------

void QOperatorQuantizer::emit(OnnxNode node) {
  available_.insert(node.outputs.begin(), node.outputs.end());
  made_.push_back(std::move(node));
}

void QOperatorQuantizer::emit_linear(const OnnxNode& node, std::string op,
                                     std::vector<std::string> operands,
                                     const QuantizedValue& result, OnnxAttrs more) {
  OnnxAttrs attrs = node.attrs;
  for (auto& attr : more) attrs.push_back(std::move(attr));
  emit(make_node(std::move(op), std::move(operands), {result.data},
                 node.name.empty() ? "" : node.name + "_quant", std::move(attrs), kMicrosoft));
}

void QOperatorQuantizer::add_initializer(const std::string& name, OnnxTensor tensor) {
  model_.graph.initializers.push_back({name, std::move(tensor)});
}

bool QOperatorQuantizer::fits_bias(const std::string& name, const std::string& weight,
                                   const ConstantRule& rule) const {
  const OnnxTensor* tensor = initializer(name);
  if (!tensor || !has_scale(name)) return false;
  const OnnxTensor* factor = initializer(weight);
  const bool per_channel = rule.axis >= 0 && factor;
  return !per_channel || (!tensor->dims.empty() &&
                          tensor->dims.back() == factor->dims[static_cast<size_t>(rule.axis)]);
}

// Nodes may share a bias whose scale depends on the node.
std::string QOperatorQuantizer::bias(const std::string& name, const QuantizedValue& input,
                                     const QuantizedValue& weight, double factor) {
  for (const Bias& bias : biases_)
    if (bias.name == name && bias.input_scale == input.scale && bias.weight_scale == weight.scale &&
        bias.factor == factor)
      return bias.data;
  biases_.push_back({name, fresh(name + "_quantized"), input.scale, weight.scale, factor});
  return biases_.back().data;
}

QOperatorQuantizer::Constant* QOperatorQuantizer::constant_of(const std::string& scale) {
  const auto name = constant_by_scale_.find(scale);
  return name == constant_by_scale_.end() ? nullptr : &constants_.at(name->second);
}

// After all nodes: a bias may widen the scale of a weight that other nodes read, too.
void QOperatorQuantizer::add_biases() {
  for (const Bias& bias : biases_)
    if (Constant* weight = constant_of(bias.weight_scale); weight && options_.adjust_weights)
      StaticScales::widen(weight->scales,
                          scale_by_name(bias.input_scale).scale * static_cast<float>(bias.factor),
                          *initializer(bias.name));
  for (const Bias& bias : biases_) {
    std::vector<float> scales;
    if (const Constant* weight = constant_of(bias.weight_scale))
      for (const QuantizedScale& scale : weight->scales.how.scales) scales.push_back(scale.scale);
    else
      scales.push_back(scale_by_name(bias.weight_scale).scale);
    const OnnxTensor& tensor = *initializer(bias.name);
    const QuantizedBias made =
        StaticScales::of_bias(tensor, scale_by_name(bias.input_scale).scale, scales, bias.factor);
    add_initializer(bias.data, tensor_of(DType::Int32, tensor.dims, made.integers));
  }
}

void QOperatorQuantizer::add_constants() {
  for (const auto& [name, constant] : constants_) {
    const ConstantScales& scales = constant.scales;
    std::vector<int64_t> sizes;
    if (scales.axis >= 0) sizes.push_back(static_cast<int64_t>(scales.how.scales.size()));
    add_initializer(constant.value.scale, scale_tensor(scales.how, scales.weight->dtype, sizes));
    add_initializer(constant.value.zero_point, zero_point_tensor(scales.how, sizes));
    add_initializer(constant.value.data,
                    quantized_tensor(scales.weight, scales.how, constant.report));
  }
}

}  // namespace ortmodule
