// Linear quantization: real = scale * (quantized - zero_point). Which scale and zero point a range
// of real numbers gets, and the rounding, are those of onnxruntime's tool, so that files agree bit
// by bit.
#pragma once

#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace ortmodule {

/// An integer type of at most 16 bits, by its number in ONNX (TensorProto.DataType).
enum class QuantizedType : uint8_t { UInt8 = 2, Int8 = 3, UInt16 = 4, Int16 = 5 };

/// Bytes of one element.
size_t size_of(QuantizedType type);
bool is_signed(QuantizedType type);

/// The least and the largest number of a type.
struct QuantizedLimits {
  int least = 0;
  int most = 0;
};
QuantizedLimits limits_of(QuantizedType type);

/// How a range is mapped.
struct RangeRule {
  QuantizedType type = QuantizedType::Int8;
  bool symmetric = false;                  // [-a, a], so that the zero point is in the middle
  bool reduce_range = false;               // one bit less
  std::optional<double> least_range = {};  // the range of real numbers is at least that wide
};

/// Scales are kept in the type of the real numbers, float32 or float16; both fit a float.
struct QuantizedScale {
  float scale = 1.0F;
  int zero_point = 0;
};

/// Real numbers from `least` to `most`, 0 included, of type `dtype`. A range so narrow that its
/// scale would be denormal gets scale 1.
QuantizedScale scale_of_range(double least, double most, DType dtype, const RangeRule& rule);

/// The least and largest values of an activation in uint8 whose zero point is 0 or in the middle.
QuantizedScale restricted_scale(double least, double most, const RangeRule& rule);

/// The nearest float16 (ties to even), as float.
float rounded_to_float16(double value);

/// Ties to even; saturates at the limits of `type`. `out` has `count` elements of the type.
void quantize_values(const float* values, size_t count, QuantizedScale scale, QuantizedType type,
                     void* out);

}  // namespace ortmodule
