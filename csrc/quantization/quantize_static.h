// Static quantization, with ranges found beforehand: QuantizeLinear and DequantizeLinear around the
// values and weights that operators can take as integers, or operators of integers in their place.
// Nodes and names are those of onnxruntime 1.32's quantize_static.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quantization/quantize_dynamic.h"

namespace ortmodule {

/// What is given for a tensor, or one channel of a constant, in place of what would be found.
struct TensorOverride {
  std::optional<QuantizedType> type;
  std::optional<int64_t> axis;  // of the channels, given with the first one
  std::optional<bool> symmetric;
  std::optional<bool> reduce_range;
  GivenRange range;
  std::optional<QuantizedScale> scale;  // in place of all others but the type and the axis
};

/// Options with the meaning that onnxruntime's arguments and extra options have.
struct StaticQuantization {
  bool qoperator = false;          // QuantFormat.QOperator, else QDQ
  std::set<std::string> op_types;  // empty: all that are known
  bool per_channel = false;
  bool reduce_range = false;
  QuantizedType activation_type = QuantizedType::Int8;
  QuantizedType weight_type = QuantizedType::Int8;
  std::set<std::string> nodes_to_quantize;  // names; empty: all
  std::set<std::string> nodes_to_exclude;
  bool activation_symmetric = false;
  bool activation_restricted = false;  // zero points at the end or in the middle
  std::optional<bool> weight_symmetric;
  bool force_direct = false;
  bool pair_for_weights = false;  // float weights with both nodes
  bool quantize_bias = true;
  bool keep_removable = false;  // Relu and Clip stay
  bool adjust_weights = true;   // for biases that would overflow
  bool microsoft_domain = false;
  bool constant_weights = false;  // products of two activations stay; QOperator
  std::set<std::string> ops_without_output;
  std::map<std::string, int64_t> axis_by_op;
  std::optional<double> least_range;
  std::map<std::string, std::vector<TensorOverride>> overrides;  // by tensor; none is empty
};

/// The least and largest value by name.
using ValueRanges = std::map<std::string, std::pair<double, double>>;

/// The values whose ranges quantize_static() needs.
std::vector<std::string> values_to_calibrate(const OnnxModel& model,
                                             const StaticQuantization& options);

/// Adds the least and the largest element of each value to the outputs, in that order.
void add_ranges(OnnxModel& model, const std::vector<std::string>& names);

/// Quantizes in place. The new weights are made when the model is written. A value without a finite
/// range stays float32, as the report says. Throws Error if no value has one.
QuantizationReport quantize_static(OnnxModel& model, const StaticQuantization& options,
                                   ValueRanges ranges);

/// Operators that are quantized by default.
const std::set<std::string>& static_op_types();

}  // namespace ortmodule
