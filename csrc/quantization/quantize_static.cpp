#include "quantization/quantize_static.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "onnx/onnx_types.h"
#include "quantization/qoperator_quantizer.h"
#include "quantization/raise_opset.h"
#include "quantization/static_marks.h"
#include "quantization/static_scales.h"

namespace ortmodule {
namespace {

constexpr int64_t kOldestOpset = 10, kAxisOpset = 13, kHalfOpset = 19, kWideOpset = 21;
constexpr int64_t kFreeInitializersIr = 4;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Names of the tensors that describe a quantized value, and its scales.
struct Described {
  std::string scale, zero_point;
  std::vector<float> scales;
};

class StaticQuantizer {
 public:
  StaticQuantizer(OnnxModel& model, const StaticQuantization& options, ValueRanges& ranges)
      : model_(model),
        options_(options),
        marks_(model, options, &ranges),
        scales_(model, options, ranges),
        names_(model),
        domain_(needs_microsoft() ? "com.microsoft" : "") {
    for (const OnnxNode& node : model.graph.nodes)
      if (node.op == "DequantizeLinear")
        dequantized_.insert(node.outputs.begin(), node.outputs.end());
    for (const OnnxValue& output : model.graph.outputs) outputs_.insert(output.name);
  }

  QuantizationReport run() {
    for (const std::string& name : marks_.order)
      if (const OnnxTensor* tensor = marks_.initializer(name)) find_scales(name, *tensor);
    if (options_.adjust_weights)
      for (const MarkedBias& bias : marks_.biases) widen_weight(bias);
    for (const std::string& name : marks_.order)
      if (marks_.values.at(name).shares.empty()) quantize_value(name);
    share_scales();
    if (options_.quantize_bias)
      for (const MarkedBias& bias : marks_.biases) quantize_bias(bias);
    assemble();
    return std::move(marks_.report);
  }

 private:
  bool needs_microsoft() const {
    const int64_t opset = standard_opset(model_);
    bool wide = size_of(options_.activation_type) > 1 || size_of(options_.weight_type) > 1;
    for (const auto& [name, given] : options_.overrides)
      wide = wide || (given[0].type && size_of(*given[0].type) > 1);
    const bool half = std::any_of(
        marks_.order.begin(), marks_.order.end(),
        [&](const std::string& name) { return scales_.dtype_of(name) == DType::Float16; });
    return options_.microsoft_domain || (wide && opset < kWideOpset) ||
           (half && opset < kHalfOpset) || (options_.per_channel && opset < kAxisOpset);
  }

  // ---- weights ---------------------------------------------------------------------------------

  void find_scales(const std::string& name, const OnnxTensor& tensor) {
    const MarkedValue& mark = marks_.values.at(name);
    ConstantRule rule{mark.is_weight ? options_.weight_type : options_.activation_type, mark.axis};
    // Of channels the zero point must be the same.
    if (has_channels(name, mark))
      rule.symmetric = true;
    else
      rule.symmetric = mark.is_weight ? options_.weight_symmetric : options_.activation_symmetric;
    rule.reduce_range = options_.reduce_range;
    constants_.emplace(name, scales_.of_constant(name, tensor, rule));
  }

  bool has_channels(const std::string& name, const MarkedValue& mark) const {
    const auto given = options_.overrides.find(name);
    return mark.axis >= 0 || (given != options_.overrides.end() && given->second[0].axis);
  }

  // A scale for each channel needs an element for each of them.
  static bool has_channels_of(const OnnxTensor& bias, size_t channels) {
    return channels == 1 || bias.dims == std::vector<int64_t>{static_cast<int64_t>(channels)};
  }

  void widen_weight(const MarkedBias& bias) {
    const auto found = constants_.find(bias.weight);
    if (found == constants_.end() ||
        !has_channels_of(*marks_.initializer(bias.name), found->second.how.scales.size()) ||
        !scales_.has_range(bias.input) || marks_.values.count(bias.input) == 0)
      return;
    StaticScales::widen(found->second, scales_.of_value(bias.input).scale.scale,
                        *marks_.initializer(bias.name));
  }

  // ---- nodes -----------------------------------------------------------------------------------

  OnnxAttrs axis_attr(int axis) const {
    return axis < 0 ? OnnxAttrs{} : OnnxAttrs{{"axis", int64_t{axis}}};
  }

  void add_initializer(const std::string& name, OnnxTensor tensor) {
    added_.push_back({name, std::move(tensor)});
  }

  Described describe(const std::string& name, const QuantizedWeight& how, DType dtype, int axis) {
    Described tensors{names_.fresh(name + "_scale"), names_.fresh(name + "_zero_point"), {}};
    std::vector<int64_t> sizes;
    if (axis >= 0) sizes.push_back(static_cast<int64_t>(how.scales.size()));
    for (const QuantizedScale& scale : how.scales) tensors.scales.push_back(scale.scale);
    add_initializer(tensors.scale, scale_tensor(how, dtype, sizes));
    add_initializer(tensors.zero_point, zero_point_tensor(how, sizes));
    return tensors;
  }

  void quantize_value(const std::string& name) {
    const auto constant = constants_.find(name);
    if (constant != constants_.end()) return quantize_constant(name, constant->second);
    if (dequantized_.count(name) > 0) return;  // it comes from integers already
    const ValueScale found = scales_.of_value(name);
    const QuantizedWeight how{found.type, {found.scale}, {}};
    const Described tensors = describe(name, how, scales_.dtype_of(name), -1);
    add_pair(name, tensors);
    described_.emplace(name, tensors);
  }

  void quantize_constant(const std::string& name, const ConstantScales& scales) {
    const Described tensors = describe(name, scales.how, scales.weight->dtype, scales.axis);
    const std::string output = names_.fresh(name + "_DequantizeLinear_Output");
    std::string integers = names_.fresh(name + "_quantized");
    if (options_.pair_for_weights) {
      integers = names_.fresh(name + "_QuantizeLinear_Output");
      first_.push_back(make_node("QuantizeLinear", {name, tensors.scale, tensors.zero_point},
                                 {integers}, name + "_QuantizeLinear", axis_attr(scales.axis),
                                 domain_));
    } else {
      auto facts = std::make_shared<WeightReport>();
      facts->name = name;
      add_initializer(integers, quantized_tensor(scales.weight, scales.how, facts));
      weights_.emplace(name, facts);
    }
    first_.push_back(make_node("DequantizeLinear", {integers, tensors.scale, tensors.zero_point},
                               {output}, name + "_DequantizeLinear", axis_attr(scales.axis),
                               domain_));
    new_inputs_[name] = output;
    described_.emplace(name, tensors);
  }

  // value -> QuantizeLinear -> DequantizeLinear, which its readers read.
  void add_pair(const std::string& name, const Described& tensors) {
    const bool is_output = outputs_.count(name) > 0;
    const std::string integers = names_.fresh(name + "_QuantizeLinear_Output");
    std::string from = name, to = name;
    if (is_output)
      new_outputs_[name] = from = names_.fresh(name + "_QuantizeLinear_Input");
    else
      new_inputs_[name] = to = names_.fresh(name + "_DequantizeLinear_Output");
    std::vector<OnnxNode>& pair = pairs_[name];
    pair.push_back(make_node("QuantizeLinear", {from, tensors.scale, tensors.zero_point},
                             {integers}, name + "_QuantizeLinear", {}, domain_));
    pair.push_back(make_node("DequantizeLinear", {integers, tensors.scale, tensors.zero_point},
                             {to}, name + "_DequantizeLinear", {}, domain_));
  }

  // Values with the scale of another one, which may share its scale itself.
  void share_scales() {
    for (bool progress = true; progress;) {
      progress = false;
      for (const std::string& name : marks_.order) {
        const std::string& from = marks_.values.at(name).shares;
        const auto found = described_.find(from);
        if (from.empty() || described_.count(name) > 0 || found == described_.end() ||
            found->second.scales.size() != 1 || dequantized_.count(name) > 0)
          continue;
        const Described tensors = found->second;
        add_pair(name, tensors);
        described_.emplace(name, tensors);
        progress = true;
      }
    }
  }

  void quantize_bias(const MarkedBias& bias) {
    const auto input = described_.find(bias.input), weight = described_.find(bias.weight);
    if (described_.count(bias.name) > 0 || input == described_.end() || weight == described_.end())
      return;
    const OnnxTensor& tensor = *marks_.initializer(bias.name);
    if (!has_channels_of(tensor, weight->second.scales.size())) return;
    if (tensor.dtype != DType::Float32) return;  // the product of scales of float16 may be 0
    const float input_scale = input->second.scales[0];
    std::vector<float> scales = weight->second.scales;
    for (float& scale : scales) scale *= input_scale;
    // The integers are those of beta times the bias. onnxruntime's have the scale times beta, so
    // that its files add the bias itself.
    const double factor = bias.beta == 0 ? 0.0 : 1.0 / bias.beta;
    const QuantizedBias made =
        StaticScales::of_bias(tensor, input_scale, weight->second.scales, factor);
    multiplied_.insert(bias.output);
    const std::string data = names_.fresh(bias.name + "_quantized");
    const std::string scale = names_.fresh(data + "_scale");
    const std::string zero = names_.fresh(data + "_zero_point");
    const bool per_channel = scales.size() > 1;
    const auto count = static_cast<int64_t>(scales.size());
    add_initializer(data, {DType::Int32, tensor.dims, bytes_of(made.integers)});
    add_initializer(scale, {DType::Float32, {count}, bytes_of(scales)});
    add_initializer(
        zero, {DType::Int32, per_channel ? std::vector<int64_t>{count} : std::vector<int64_t>{},
               bytes_of(std::vector<int32_t>(scales.size(), 0))});
    first_.push_back(make_node("DequantizeLinear", {data, scale, zero}, {bias.name},
                               bias.name + "_DequantizeLinear", axis_attr(per_channel ? 0 : -1),
                               domain_));
    described_.emplace(bias.name, Described{scale, zero, scales});
  }

  // Each pair stands behind the node that makes its value.
  void assemble() {
    OnnxGraph& graph = model_.graph;
    for (OnnxNode& node : graph.nodes) {
      if (!node.outputs.empty() && multiplied_.count(node.outputs[0]) > 0)
        for (auto& [name, value] : node.attrs)
          if (name == "beta") value = 1.0;
      for (std::string& input : node.inputs)
        if (const auto found = new_inputs_.find(input); found != new_inputs_.end())
          input = found->second;
      for (const std::string& name : outer_values(node)) report_inner(name);
    }
    std::vector<OnnxNode> nodes = std::move(first_);
    const auto append_pair = [&](const std::string& name) {
      const auto found = pairs_.find(name);
      if (found == pairs_.end()) return;
      for (OnnxNode& node : found->second) nodes.push_back(std::move(node));
    };
    for (const OnnxValue& input : graph.inputs) append_pair(input.name);
    for (OnnxNode& node : graph.nodes) {
      const std::vector<std::string> made = node.outputs;
      for (std::string& output : node.outputs)
        if (const auto found = new_outputs_.find(output); found != new_outputs_.end())
          output = found->second;
      nodes.push_back(std::move(node));
      for (const std::string& output : made) append_pair(output);
    }
    graph.nodes = std::move(nodes);
    for (OnnxInitializer& each : added_) graph.initializers.push_back(std::move(each));
    report_weights();
  }

  void report_inner(const std::string& name) {
    if (new_inputs_.count(name) > 0)
      marks_.report.notes.push_back(str("'", name, "' stays float32 inside of subgraphs"));
  }

  void report_weights() {
    std::unordered_map<std::string, std::vector<std::shared_ptr<WeightReport>>> by_output;
    for (const OnnxNode& node : model_.graph.nodes)
      for (const std::string& input : node.inputs)
        for (const auto& [name, facts] : weights_)
          if (new_inputs_.at(name) == input && !node.outputs.empty())
            by_output[node.outputs[0]].push_back(facts);
    for (NodeReport& row : marks_.report.nodes)
      for (const std::string& output : {row.output, new_outputs_[row.output]})
        if (const auto found = by_output.find(output); found != by_output.end())
          row.weights = found->second;
  }

  OnnxModel& model_;
  const StaticQuantization& options_;
  StaticMarks marks_;
  StaticScales scales_;
  TakenNames names_;
  std::string domain_;
  std::set<std::string> outputs_, dequantized_;
  std::map<std::string, ConstantScales> constants_;
  std::unordered_map<std::string, Described> described_;
  std::unordered_map<std::string, std::string> new_inputs_, new_outputs_;
  std::unordered_map<std::string, std::vector<OnnxNode>> pairs_;  // by value
  std::map<std::string, std::shared_ptr<WeightReport>> weights_;
  std::vector<OnnxNode> first_;       // that read constants only
  std::set<std::string> multiplied_;  // results of Gemms with beta in the integers of the bias
  std::vector<OnnxInitializer> added_;
};

void check_overrides(const OnnxModel& model, const StaticQuantization& options) {
  std::set<std::string> constants, values;
  for (const OnnxInitializer& each : model.graph.initializers) constants.insert(each.name);
  for (const OnnxValue& input : model.graph.inputs) values.insert(input.name);
  for (const OnnxNode& node : model.graph.nodes)
    values.insert(node.outputs.begin(), node.outputs.end());
  for (const auto& [name, given] : options.overrides) {
    const bool constant = constants.count(name) > 0;
    ORTM_CHECK(constant || values.count(name) > 0,
               "[quantization] TensorQuantOverrides must name tensors of the model, but found '",
               name, "'");
    ORTM_CHECK(constant || (!given[0].axis && !given[0].reduce_range && given.size() == 1),
               "[quantization] TensorQuantOverrides of '", name,
               "', which is no initializer, must have neither channels nor reduce_range");
  }
}

// Some values may have no range, where data did not reach them, but not all of them.
void check_ranges(const OnnxModel& model, const StaticQuantization& options,
                  const ValueRanges& ranges) {
  const std::vector<std::string> names = values_to_calibrate(model, options);
  const bool none = std::none_of(names.begin(), names.end(),
                                 [&](const std::string& name) { return ranges.count(name) > 0; });
  ORTM_CHECK(names.empty() || !none || !options.overrides.empty(),
             "[quantization] the ranges must be of the model's values, but found none of '",
             names[0], "' and ", names.size() - 1,
             " others; calibrate this model, or delete the calibration cache of another one");
}

// The float values that the selected nodes read and make.
std::vector<std::string> values_of_nodes(const OnnxModel& model,
                                         const StaticQuantization& options) {
  const ValueTypes types(model.graph, nullptr);
  std::set<std::string> seen;
  for (const OnnxInitializer& each : model.graph.initializers) seen.insert(each.name);
  std::vector<std::string> names;
  for (const OnnxNode& node : model.graph.nodes) {
    if (!is_selected(node, options)) continue;
    for (const auto* values : {&node.inputs, &node.outputs})
      for (const std::string& name : *values)
        if (types.is_float(name) && seen.insert(name).second) names.push_back(name);
  }
  return names;
}

}  // namespace

std::vector<std::string> values_to_calibrate(const OnnxModel& model,
                                             const StaticQuantization& options) {
  if (options.qoperator) return values_of_nodes(model, options);
  OnnxModel copy = model;
  const StaticMarks marks(copy, options, nullptr);
  std::vector<std::string> names;
  for (const std::string& name : marks.order)
    if (!marks.initializer(name)) names.push_back(name);
  return names;
}

void add_ranges(OnnxModel& model, const std::vector<std::string>& names) {
  TakenNames taken(model);
  for (const std::string& name : names) {
    for (const char* op : {"ReduceMin", "ReduceMax"}) {
      const std::string output = taken.fresh(str(name, "_", op));
      model.graph.nodes.push_back(
          make_node(op, {name}, {output}, output, {{"keepdims", int64_t{0}}}));
      model.graph.outputs.push_back({output, OnnxType()});
    }
  }
}

QuantizationReport quantize_static(OnnxModel& model, const StaticQuantization& options,
                                   ValueRanges ranges) {
  check_overrides(model, options);
  ORTM_CHECK(
      !options.qoperator ||
          (size_of(options.activation_type) == 1 && size_of(options.weight_type) == 1),
      "[quantization] QuantFormat.QOperator must have types of 8 bits, but found 16: use QDQ");
  if (options.activation_type == QuantizedType::Int8 && options.weight_type == QuantizedType::UInt8)
    throw Error(
        "[quantization] weights of QUInt8 must have activations of QUInt8, but found QInt8");
  check_ranges(model, options, ranges);
  std::vector<std::string> notes;
  if (const int64_t opset = standard_opset(model); opset < kOldestOpset) {
    raise_opset(model);
    notes.push_back(str("raised the operator set from ", opset, " to 11"));
  }
  QuantizationReport report = options.qoperator ? QOperatorQuantizer(model, options, ranges).run()
                                                : StaticQuantizer(model, options, ranges).run();
  report.notes.insert(report.notes.begin(), notes.begin(), notes.end());
  remove_unread(model, {});
  const bool microsoft =
      std::any_of(model.graph.nodes.begin(), model.graph.nodes.end(),
                  [](const OnnxNode& node) { return node.domain == "com.microsoft"; });
  const bool has_domain =
      std::any_of(model.opsets.begin(), model.opsets.end(),
                  [](const OnnxOpset& opset) { return opset.domain == "com.microsoft"; });
  if (microsoft && !has_domain) model.opsets.push_back({"com.microsoft", 1});
  model.ir_version = std::max(model.ir_version, kFreeInitializersIr);
  return report;
}

}  // namespace ortmodule
