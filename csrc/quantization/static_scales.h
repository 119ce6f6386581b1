// The scales of static quantization, whatever nodes a file is made of: of values from calibrated
// ranges, of constants from their elements, of biases from both.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quantization/quantize_static.h"
#include "quantization/value_types.h"

namespace ortmodule {

/// With which type and scale a value is quantized.
struct ValueScale {
  QuantizedType type = QuantizedType::Int8;
  QuantizedScale scale;
};

struct ConstantScales {
  std::shared_ptr<const ConstantWeight> weight;
  QuantizedWeight how;
  int axis = -1;
};

/// How a constant is quantized unless something else is given for it.
struct ConstantRule {
  QuantizedType type = QuantizedType::Int8;
  int axis = -1;                       // of a scale for each channel
  std::optional<bool> symmetric = {};  // absent: if the type has a sign
  bool reduce_range = false;
};

struct QuantizedBias {
  std::vector<int32_t> integers;
  std::vector<float> scales;
};

/// The scale of a value that is computed: what is given for it, or that of its range, which is
/// finite.
ValueScale scale_of_value(const TensorOverride& given, const ValueRanges::mapped_type& range,
                          DType dtype, const StaticQuantization& options);

/// Whether the integers of Relu's or Clip's result end where the node ends its operand, to one
/// step, so that quantizing does what the node does. `scalars`: see scalar_constants().
bool quantizing_limits(const OnnxNode& node, const ValueScale& result,
                       const std::map<std::string, double>& scalars);

class StaticScales {
 public:
  StaticScales(const OnnxModel& model, const StaticQuantization& options, ValueRanges& ranges)
      : options_(options), ranges_(ranges), types_(model.graph, nullptr) {
    adjust_ranges(model);
  }

  DType dtype_of(const std::string& name) const;
  bool has_range(const std::string& name) const { return ranges_.count(name) > 0; }
  const ValueRanges& ranges() const { return ranges_; }
  ValueScale of_value(const std::string& name) const;
  /// Of a finite constant. Throws Error for what is given in vain.
  ConstantScales of_constant(const std::string& name, const OnnxTensor& tensor,
                             ConstantRule rule) const;
  /// A bias is quantized with the product of two scales. Where that is so small that it would leave
  /// int32, the weight's scale grows.
  static void widen(ConstantScales& weight, float input_scale, const OnnxTensor& bias);
  /// With the product of the scales and `factor`; zeros with a factor of 0.
  static QuantizedBias of_bias(const OnnxTensor& bias, float input_scale,
                               const std::vector<float>& weight_scales, double factor);

 private:
  void adjust_ranges(const OnnxModel& model);
  TensorOverride given_for(const std::string& name) const;

  const StaticQuantization& options_;
  ValueRanges& ranges_;
  ValueTypes types_;
};

}  // namespace ortmodule
