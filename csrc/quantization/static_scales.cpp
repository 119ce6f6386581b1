#include "quantization/static_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "onnx/onnx_types.h"
#include "quantization/graph_edit.h"
#include "quantization/static_marks.h"

namespace ortmodule {
namespace {

std::vector<double> values_of(const OnnxTensor& tensor) {
  std::vector<double> all;
  each_value(*weight_of(tensor), [&](size_t, const float* values, size_t count) {
    all.insert(all.end(), values, values + count);
  });
  return all;
}

int64_t axis_of(const std::string& name, const OnnxTensor& tensor, int64_t axis) {
  const auto rank = static_cast<int64_t>(tensor.dims.size());
  ORTM_CHECK(axis >= -rank && axis < rank, "[quantization] the axis of TensorQuantOverrides of '",
             name, "' must be one of ", rank, " dimensions, but found ", axis);
  return axis < 0 ? axis + rank : axis;
}

}  // namespace

ValueScale scale_of_value(const TensorOverride& given, const ValueRanges::mapped_type& range,
                          DType dtype, const StaticQuantization& options) {
  const QuantizedType type = given.type.value_or(options.activation_type);
  if (given.scale) return {type, *given.scale};
  const double least = given.range.least.value_or(range.first);
  const double most = given.range.most.value_or(range.second);
  const RangeRule rule{type, given.symmetric.value_or(options.activation_symmetric), false,
                       options.least_range};
  if (options.activation_restricted && type == QuantizedType::UInt8 && !rule.symmetric)
    return {type, restricted_scale(least, most, rule)};
  return {type, scale_of_range(least, most, dtype, rule)};
}

bool quantizing_limits(const OnnxNode& node, const ValueScale& result,
                       const std::map<std::string, double>& scalars) {
  // A limit that is computed is taken to be the end of the calibrated range.
  const auto limit = [&](const char* attr, size_t operand, double fallback) {
    const double given = number_attr(node, attr, fallback);
    const auto found = scalars.find(input_of(node, operand));
    return found == scalars.end() ? given : found->second;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool clip = node.op == "Clip";
  const double low = clip ? limit("min", 1, -kInfinity) : 0.0;
  const double high = clip ? limit("max", 2, kInfinity) : kInfinity;
  const QuantizedLimits ends = limits_of(result.type);
  const auto step = static_cast<double>(result.scale.scale);
  const double slack = 1.001 * step;
  return step * (ends.least - result.scale.zero_point) >= low - slack &&
         step * (ends.most - result.scale.zero_point) <= high + slack;
}

// Relu and Clip narrow what their operand needs, Softmax has a range of its own.
void StaticScales::adjust_ranges(const OnnxModel& model) {
  std::unordered_map<std::string, int> readers;
  for (const OnnxNode& node : model.graph.nodes)
    for (const std::string& input : node.inputs) ++readers[input];
  for (const OnnxNode& node : model.graph.nodes) {
    if (!is_selected(node, options_) || node.outputs.empty()) continue;
    if (node.op == "Softmax") ranges_[node.outputs[0]] = {0.0, 1.0};
    if ((node.op == "Clip" || node.op == "Relu") && readers[node.inputs[0]] == 1 &&
        has_range(node.inputs[0]) && has_range(node.outputs[0]))
      ranges_[node.inputs[0]] = ranges_[node.outputs[0]];
  }
}

DType StaticScales::dtype_of(const std::string& name) const { return onnx_dtype(types_.of(name)); }

// What is given for the tensor in the first place; nothing if it is not.
TensorOverride StaticScales::given_for(const std::string& name) const {
  const auto found = options_.overrides.find(name);
  return found == options_.overrides.end() ? TensorOverride() : found->second[0];
}

ValueScale StaticScales::of_value(const std::string& name) const {
  const auto range = ranges_.find(name);
  return scale_of_value(given_for(name),
                        range == ranges_.end() ? ValueRanges::mapped_type() : range->second,
                        dtype_of(name), options_);
}

ConstantScales StaticScales::of_constant(const std::string& name, const OnnxTensor& tensor,
                                         ConstantRule wanted) const {
  const TensorOverride given = given_for(name);
  ConstantScales scales;
  scales.weight = weight_of(tensor);
  scales.axis = given.axis ? static_cast<int>(axis_of(name, tensor, *given.axis)) : wanted.axis;
  RangeRule rule{given.type.value_or(wanted.type)};
  rule.symmetric = given.symmetric.value_or(wanted.symmetric.value_or(is_signed(rule.type)));
  rule.reduce_range = given.reduce_range.value_or(wanted.reduce_range);
  rule.least_range = options_.least_range;
  const WeightChannels channels = channels_of(*scales.weight, scales.axis);
  std::vector<GivenRange> ranges;
  if (const auto each = options_.overrides.find(name); each != options_.overrides.end()) {
    ORTM_CHECK(each->second.size() == 1 || each->second.size() == channels.count,
               "[quantization] TensorQuantOverrides of '", name, "' must be for ", channels.count,
               " channels, but found ", each->second.size());
    for (const TensorOverride& channel : each->second) ranges.push_back(channel.range);
  }
  const auto how = quantize_weight(*scales.weight, channels, rule, ranges);
  ORTM_ASSERT(how, "a constant that is not finite has no scale");
  scales.how = *how;
  if (given.scale) {
    const std::vector<TensorOverride>& all = options_.overrides.at(name);
    ORTM_CHECK(all.size() == channels.count, "[quantization] TensorQuantOverrides of '", name,
               "' must have a scale for each of ", channels.count, " channels, but found ",
               all.size());
    for (size_t i = 0; i < all.size(); ++i) scales.how.scales[i] = all[i].scale.value();
  }
  return scales;
}

void StaticScales::widen(ConstantScales& weight, float input_scale, const OnnxTensor& bias) {
  QuantizedWeight& how = weight.how;
  const bool zero = std::all_of(how.scales.begin(), how.scales.end(),
                                [](const auto& scale) { return scale.zero_point == 0; });
  if (!is_signed(how.type) || !zero) return;
  const std::vector<double> values = values_of(bias);
  constexpr double kWidth = 2.0 * std::numeric_limits<int32_t>::max();
  constexpr double kMargin = 1.0001;
  double largest = 0;
  for (double value : values) largest = std::max(largest, std::abs(value));
  const bool per_channel = weight.axis >= 0;
  for (size_t i = 0; i < how.scales.size(); ++i) {
    if (per_channel && i >= values.size()) break;
    const double size = per_channel ? std::abs(values[i]) : largest;
    const double least = kMargin * (2.0 * size) / kWidth;
    const auto scale = static_cast<double>(how.scales[i].scale);
    const double product = static_cast<double>(input_scale) * scale;
    if (product >= least || product <= 0) continue;
    const double wider = scale * (least / product);
    const bool half = weight.weight->dtype == DType::Float16;
    how.scales[i].scale = half ? rounded_to_float16(wider) : static_cast<float>(wider);
  }
}

QuantizedBias StaticScales::of_bias(const OnnxTensor& bias, float input_scale,
                                    const std::vector<float>& weight_scales, double factor) {
  QuantizedBias made;
  for (float scale : weight_scales)
    made.scales.push_back(input_scale * scale * static_cast<float>(factor));
  const std::vector<double> values = values_of(bias);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t channel = made.scales.size() > 1 ? i % made.scales.size() : 0;
    const auto scale = static_cast<double>(made.scales[channel]);
    const bool zero = factor == 0 || scale == 0;
    const double quotient = zero ? 0.0 : std::nearbyint(values[i] / scale);
    made.integers.push_back(
        static_cast<int32_t>(std::clamp(quotient, -2147483648.0, 2147483647.0)));
  }
  return made;
}

}  // namespace ortmodule
