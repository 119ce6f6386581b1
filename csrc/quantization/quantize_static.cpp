#include "quantization/quantize_static.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "onnx/onnx_types.h"
#include "quantization/raise_opset.h"
#include "quantization/static_marks.h"

namespace ortmodule {
namespace {

constexpr int64_t kOldestOpset = 10, kAxisOpset = 13, kWideOpset = 21;
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

struct InitializerScales {
  std::shared_ptr<const ConstantWeight> weight;
  QuantizedWeight how;
  int axis = -1;
};

class StaticQuantizer {
 public:
  StaticQuantizer(OnnxModel& model, const StaticQuantization& options, ValueRanges& ranges)
      : model_(model),
        options_(options),
        ranges_(ranges),
        marks_(model, options, &ranges),
        types_(model.graph, nullptr),
        names_(model),
        domain_(needs_microsoft() ? "com.microsoft" : "") {
    for (const OnnxNode& node : model.graph.nodes)
      if (node.op == "DequantizeLinear")
        dequantized_.insert(node.outputs.begin(), node.outputs.end());
    for (const OnnxValue& output : model.graph.outputs) outputs_.insert(output.name);
  }

  QuantizationReport run() {
    adjust_ranges();
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
    const bool wide = size_of(options_.activation_type) > 1 || size_of(options_.weight_type) > 1;
    return options_.microsoft_domain || (wide && opset < kWideOpset) ||
           (options_.per_channel && opset < kAxisOpset);
  }

  // Relu and Clip narrow what their operand needs, Softmax has a range of its own.
  void adjust_ranges() {
    std::unordered_map<std::string, int> readers;
    for (const OnnxNode& node : model_.graph.nodes)
      for (const std::string& input : node.inputs) ++readers[input];
    for (const OnnxNode& node : model_.graph.nodes) {
      if (!marks_.is_selected(node) || node.outputs.empty()) continue;
      if (node.op == "Softmax") ranges_[node.outputs[0]] = {0.0, 1.0};
      if ((node.op == "Clip" || node.op == "Relu") && readers[node.inputs[0]] == 1 &&
          ranges_.count(node.inputs[0]) > 0 && ranges_.count(node.outputs[0]) > 0)
        ranges_[node.inputs[0]] = ranges_[node.outputs[0]];
    }
  }

  DType dtype_of(const std::string& name) const { return onnx_dtype(types_.of(name)); }

  QuantizedScale scale_of_value(const std::string& name) const {
    const auto found = ranges_.find(name);
    ORTM_CHECK(found != ranges_.end(), "[quantization] a value must have a calibrated range, but '",
               name, "' has none; calibrate with data that reach it, or exclude its nodes");
    const auto [least, most] = found->second;
    ORTM_CHECK(std::isfinite(least) && std::isfinite(most), "[quantization] the range of '", name,
               "' must be finite, but found ", least, " to ", most, "; exclude its nodes");
    RangeRule rule{options_.activation_type, options_.activation_symmetric, false,
                   options_.least_range};
    if (options_.activation_restricted && rule.type == QuantizedType::UInt8 && !rule.symmetric)
      return restricted_scale(least, most, rule);
    return scale_of_range(least, most, dtype_of(name), rule);
  }

  // ---- weights ---------------------------------------------------------------------------------

  void find_scales(const std::string& name, const OnnxTensor& tensor) {
    const MarkedValue& mark = marks_.values.at(name);
    InitializerScales scales;
    scales.weight = weight_of(tensor);
    scales.axis = mark.axis;
    RangeRule rule{mark.is_weight ? options_.weight_type : options_.activation_type};
    // Of channels the zero point must be the same.
    rule.symmetric =
        mark.axis >= 0 || (mark.is_weight ? options_.weight_symmetric.value_or(is_signed(rule.type))
                                          : options_.activation_symmetric);
    rule.reduce_range = options_.reduce_range;
    rule.least_range = options_.least_range;
    const auto how = quantize_weight(*scales.weight, channels_of(*scales.weight, mark.axis), rule);
    ORTM_CHECK(how, "[quantization] a weight must be finite, but '", name,
               "' holds NaN or infinity; exclude its nodes");
    scales.how = *how;
    constants_.emplace(name, std::move(scales));
  }

  std::vector<double> values_of(const OnnxTensor& tensor) const {
    std::vector<double> all;
    each_value(*weight_of(tensor), [&](size_t, const float* values, size_t count) {
      all.insert(all.end(), values, values + count);
    });
    return all;
  }

  // A bias is quantized with the product of two scales. Where that is so small that it would leave
  // int32, the weight's scale grows.
  void widen_weight(const MarkedBias& bias) {
    const auto found = constants_.find(bias.weight);
    if (found == constants_.end() || ranges_.count(bias.input) == 0 ||
        marks_.values.count(bias.input) == 0)
      return;
    QuantizedWeight& how = found->second.how;
    const bool zero = std::all_of(how.scales.begin(), how.scales.end(),
                                  [](const auto& scale) { return scale.zero_point == 0; });
    if (!is_signed(how.type) || !zero) return;
    const std::vector<double> values = values_of(*marks_.initializer(bias.name));
    const auto input_scale = static_cast<double>(scale_of_value(bias.input).scale);
    constexpr double kWidth = 2.0 * std::numeric_limits<int32_t>::max();
    constexpr double kMargin = 1.0001;
    double largest = 0;
    for (double value : values) largest = std::max(largest, std::abs(value));
    const bool per_channel = found->second.axis >= 0;
    for (size_t i = 0; i < how.scales.size(); ++i) {
      if (per_channel && i >= values.size()) break;
      const double size = per_channel ? std::abs(values[i]) : largest;
      const double least = kMargin * (2.0 * size) / kWidth;
      const auto scale = static_cast<double>(how.scales[i].scale);
      const double product = input_scale * scale;
      if (product >= least || product <= 0) continue;
      const double wider = scale * (least / product);
      const bool half = found->second.weight->dtype == DType::Float16;
      how.scales[i].scale = half ? rounded_to_float16(wider) : static_cast<float>(wider);
    }
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
    const QuantizedWeight how{options_.activation_type, {scale_of_value(name)}, {}};
    const Described tensors = describe(name, how, dtype_of(name), -1);
    add_pair(name, tensors);
    described_.emplace(name, tensors);
  }

  void quantize_constant(const std::string& name, const InitializerScales& scales) {
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
    if (tensor.dtype != DType::Float32) return;  // the product of scales of float16 may be 0
    const std::vector<double> values = values_of(tensor);
    std::vector<float> scales;
    for (float scale : weight->second.scales)
      scales.push_back(input->second.scales[0] * scale * static_cast<float>(bias.beta));
    std::vector<int32_t> integers;
    for (size_t i = 0; i < values.size(); ++i) {
      const auto scale = static_cast<double>(scales[scales.size() > 1 ? i % scales.size() : 0]);
      const bool zero = bias.beta == 0 || scale == 0;
      const double quotient = zero ? 0.0 : std::nearbyint(values[i] / scale);
      integers.push_back(static_cast<int32_t>(std::clamp(quotient, -2147483648.0, 2147483647.0)));
    }
    const std::string data = names_.fresh(bias.name + "_quantized");
    const std::string scale = names_.fresh(data + "_scale");
    const std::string zero = names_.fresh(data + "_zero_point");
    const bool per_channel = scales.size() > 1;
    const auto count = static_cast<int64_t>(scales.size());
    add_initializer(data, {DType::Int32, tensor.dims, bytes_of(integers)});
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
  ValueRanges& ranges_;
  StaticMarks marks_;
  ValueTypes types_;
  TakenNames names_;
  std::string domain_;
  std::set<std::string> outputs_, dequantized_;
  std::map<std::string, InitializerScales> constants_;
  std::unordered_map<std::string, Described> described_;
  std::unordered_map<std::string, std::string> new_inputs_, new_outputs_;
  std::unordered_map<std::string, std::vector<OnnxNode>> pairs_;  // by value
  std::map<std::string, std::shared_ptr<WeightReport>> weights_;
  std::vector<OnnxNode> first_;  // that read constants only
  std::vector<OnnxInitializer> added_;
};

}  // namespace

std::vector<std::string> values_to_calibrate(const OnnxModel& model,
                                             const StaticQuantization& options) {
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
  if (options.activation_type == QuantizedType::Int8 && options.weight_type == QuantizedType::UInt8)
    throw Error(
        "[quantization] weights of QUInt8 must have activations of QUInt8, but found QInt8");
  std::vector<std::string> notes;
  if (const int64_t opset = standard_opset(model); opset < kOldestOpset) {
    raise_opset(model);
    notes.push_back(str("raised the operator set from ", opset, " to 11"));
  }
  QuantizationReport report = StaticQuantizer(model, options, ranges).run();
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
