// Weights of a model as its nodes see them: tensors of the file, with their axes in another order
// or their elements widened. They are read from the mapped file in pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "onnx/onnx_model.h"
#include "quantization/quantized_range.h"

namespace ortmodule {

struct ConstantWeight {
  OnnxTensor tensor;             // as stored: of real numbers, without `source`
  std::vector<size_t> order;     // the tensor's axis by axis of the weight
  DType dtype = DType::Float32;  // of the weight: float32 or float16
  std::string origin;            // "", or how a node makes it: "Constant", "Transpose", "Cast" ...

  std::vector<int64_t> dims() const;
  size_t elements() const;
  size_t rank() const { return order.size(); }
  /// The same with its axes moved: axis i is axis `by[i]` of this one.
  ConstantWeight permuted(const std::vector<size_t>& by) const;
};

/// The number that the bits of a float16 stand for.
float half_to_float(uint16_t bits);

/// The weight that an initializer or the value of a Constant node is; null if it is not of floats.
std::shared_ptr<const ConstantWeight> weight_of(const OnnxTensor& tensor);

/// The floats of one element that initializers and Constant nodes of the graph are.
std::map<std::string, double> scalar_constants(const OnnxGraph& graph);

/// Calls `visit` with float32 values in stored order: the first of `count` has index `first`.
void each_value(const ConstantWeight& weight,
                const std::function<void(size_t first, const float* values, size_t count)>& visit);

/// What a quantized weight lost. The errors are known once its file is written.
struct WeightReport {
  std::string name;
  std::string origin;  // of the float weight, see ConstantWeight
  size_t float_bytes = 0;
  size_t quantized_bytes = 0;
  double relative_error = 0;  // root of sum (w - w')^2 / sum w^2
  double largest_error = 0;   // max |w - w'|
};

/// The channel of the stored element i is i / inner % count; without `inner` all are in one.
struct WeightChannels {
  size_t count = 1;
  size_t inner = 0;
};
/// One channel per index of an axis of the weight; of -1 one for all.
WeightChannels channels_of(const ConstantWeight& weight, int axis);

/// A scale for each channel.
struct QuantizedWeight {
  QuantizedType type = QuantizedType::Int8;
  std::vector<QuantizedScale> scales;
  WeightChannels channels;
};

/// Ends of a range that take the place of the values'.
struct GivenRange {
  std::optional<double> least, most;
};

/// Finds the scales; `given`: for the first of the channels. Returns nothing for a weight with NaN
/// or infinity.
std::optional<QuantizedWeight> quantize_weight(const ConstantWeight& weight,
                                               WeightChannels channels, const RangeRule& rule,
                                               const std::vector<GivenRange>& given = {});

/// The quantized tensor, which is made when it is written.
OnnxTensor quantized_tensor(std::shared_ptr<const ConstantWeight> weight, QuantizedWeight how,
                            std::shared_ptr<WeightReport> report);
/// The float tensor with its axes in order, which is made when it is written.
OnnxTensor ordered_tensor(std::shared_ptr<const ConstantWeight> weight);

/// Small tensors. Scales are of type float32 or float16.
OnnxTensor scale_tensor(const QuantizedWeight& how, DType dtype, std::vector<int64_t> dims);
OnnxTensor zero_point_tensor(const QuantizedWeight& how, std::vector<int64_t> dims);
OnnxTensor int64_tensor(const std::vector<int64_t>& values);

}  // namespace ortmodule
