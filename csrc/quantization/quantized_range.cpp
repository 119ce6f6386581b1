#include "quantization/quantized_range.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace ortmodule {
namespace {

QuantizedLimits limits_of(const RangeRule& rule) {
  if (rule.reduce_range) {
    switch (rule.type) {
      case QuantizedType::UInt8: return {0, 127};
      case QuantizedType::Int8: return {-64, 64};
      case QuantizedType::UInt16: return {0, 32767};
      case QuantizedType::Int16: return {-16384, 16384};
    }
  }
  QuantizedLimits limits = limits_of(rule.type);
  if (rule.symmetric && is_signed(rule.type)) ++limits.least;  // -127 to 127
  return limits;
}

template <class T>
void quantize_as(const float* values, size_t count, QuantizedScale scale, T* out) {
  // Adding it rounds a number below 2^22 to an integer, ties to even.
  constexpr float kRound = 12582912.0F;
  constexpr float kFar = 1048576.0F;  // beyond all limits
  const auto zero = static_cast<float>(scale.zero_point);
  const auto least = static_cast<float>(std::numeric_limits<T>::min());
  const auto most = static_cast<float>(std::numeric_limits<T>::max());
  for (size_t i = 0; i < count; ++i) {
    const float shifted = std::min(std::max(values[i] / scale.scale, -kFar), kFar);
    const float rounded = (shifted + kRound) - kRound;
    out[i] = static_cast<T>(std::min(std::max(rounded + zero, least), most));
  }
}

}  // namespace

size_t size_of(QuantizedType type) {
  return type == QuantizedType::UInt8 || type == QuantizedType::Int8 ? 1 : 2;
}

bool is_signed(QuantizedType type) {
  return type == QuantizedType::Int8 || type == QuantizedType::Int16;
}

QuantizedLimits limits_of(QuantizedType type) {
  switch (type) {
    case QuantizedType::UInt8: return {0, 255};
    case QuantizedType::Int8: return {-128, 127};
    case QuantizedType::UInt16: return {0, 65535};
    case QuantizedType::Int16: return {-32768, 32767};
  }
  return {};
}

// float64 -> float32 with the last bit set if anything was cut off, so that the second rounding is
// the only one.
float rounded_to_float16(double value) {
  auto odd = static_cast<float>(value);
  if (static_cast<double>(odd) != value) {
    if (std::abs(static_cast<double>(odd)) > std::abs(value)) odd = std::nextafter(odd, 0.0F);
    odd = std::bit_cast<float>(std::bit_cast<uint32_t>(odd) | 1U);
  }
  const float size = std::abs(odd);
  if (!(size < 65520.0F)) return std::copysign(std::numeric_limits<float>::infinity(), odd);
  // Adding this number leaves as many bits as a float16 of that size has.
  const int exponent = std::max(std::ilogb(std::max(size, 1e-30F)), -14);
  const float step = std::ldexp(1.0F, exponent + 13);  // 2^(exponent - 10) is its last bit
  return std::copysign((size + step) - step, odd);
}

QuantizedScale scale_of_range(double least, double most, DType dtype, const RangeRule& rule) {
  const bool half = dtype == DType::Float16;
  ORTM_ASSERT(half || dtype == DType::Float32, "scales are float32 or float16");
  auto stored = [&](double value) {
    return half ? rounded_to_float16(value) : static_cast<float>(value);
  };
  const QuantizedLimits limits = limits_of(rule);
  least = std::min(least, 0.0);
  most = std::max(most, 0.0);
  // The sum is taken in the type of the data.
  if (rule.least_range)
    most = std::max<double>(most, stored(static_cast<float>(least) + stored(*rule.least_range)));
  if (rule.symmetric) {
    most = std::max(std::abs(least), std::abs(most));
    least = -most;
  }
  const double scale = (most - least) / (limits.most - limits.least);
  const float kept = stored(scale);
  if (half ? kept < 0x1p-24F : scale < std::numeric_limits<float>::min()) return {1.0F, 0};
  double zero = 0;
  if (rule.symmetric)
    zero = std::nearbyint((limits.least + limits.most) / 2.0);
  else
    zero = std::nearbyint(limits.least - least / scale);
  return {kept, static_cast<int>(zero)};
}

QuantizedScale restricted_scale(double least, double most, const RangeRule& rule) {
  const QuantizedLimits limits = limits_of(rule);
  const int width = limits.most - limits.least, middle = (limits.least + limits.most + 1) / 2;
  least = std::min(least, 0.0);
  most = std::max(most, 0.0);
  const double wanted = rule.least_range.value_or(0.0);
  if (wanted > 0) most = std::max(most, least + wanted);
  QuantizedScale result{1.0F, least >= 0 ? limits.least : middle};
  double scale = 1.0 / width;
  if (most > least && least >= 0) scale = most / width;
  if (most > least && least < 0)
    scale = std::max(-least / (middle - limits.least), most / (limits.most - middle));
  result.scale = static_cast<float>(scale);
  if (result.scale < wanted / width) result.scale = static_cast<float>(wanted / width);
  return result;
}

void quantize_values(const float* values, size_t count, QuantizedScale scale, QuantizedType type,
                     void* out) {
  switch (type) {
    case QuantizedType::UInt8: return quantize_as(values, count, scale, static_cast<uint8_t*>(out));
    case QuantizedType::Int8: return quantize_as(values, count, scale, static_cast<int8_t*>(out));
    case QuantizedType::UInt16:
      return quantize_as(values, count, scale, static_cast<uint16_t*>(out));
    case QuantizedType::Int16: return quantize_as(values, count, scale, static_cast<int16_t*>(out));
  }
}

}  // namespace ortmodule
