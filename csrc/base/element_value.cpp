#include "base/element_value.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace ortmodule {

uint16_t bfloat16_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Counts the magnitude in units in the last place; nearbyint rounds ties to even.
uint16_t float16_bits(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7e00;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0.0) return sign;
  if (magnitude >= 65520.0) return static_cast<uint16_t>(sign | 0x7c00);
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 11, -24);  // exponent of a unit in the last place
  const auto count = static_cast<uint16_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
  // A count of 2048 correctly carries into the exponent.
  return static_cast<uint16_t>(sign | (((unit + 24) << 10) + count));
}

float float_of_bits(uint16_t bits, DType dtype) {
  if (dtype == DType::BFloat16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                  : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  if (exponent == 31) magnitude = fraction ? NAN : INFINITY;
  return bits & 0x8000 ? -magnitude : magnitude;
}

namespace {

// For integers below 2^53 in magnitude, which double represents exactly.
template <class T>
double wrapped(double value) {
  if (!(std::fabs(value) < 0x1p53)) return value;
  return static_cast<double>(static_cast<T>(static_cast<int64_t>(value)));
}

}  // namespace

double element_value(double value, DType dtype) {
  switch (dtype) {
    case DType::Float32: return static_cast<double>(static_cast<float>(value));
    case DType::Float16:
      return static_cast<double>(float_of_bits(float16_bits(static_cast<float>(value)), dtype));
    case DType::BFloat16:
      return static_cast<double>(float_of_bits(bfloat16_bits(static_cast<float>(value)), dtype));
    case DType::Int32: return wrapped<int32_t>(value);
    case DType::Int16: return wrapped<int16_t>(value);
    case DType::Int8: return wrapped<int8_t>(value);
    case DType::UInt8: return wrapped<uint8_t>(value);
    case DType::UInt16: return wrapped<uint16_t>(value);
    case DType::UInt32: return wrapped<uint32_t>(value);
    case DType::Bool: return value != 0.0 ? 1.0 : 0.0;
    default: return value;
  }
}

}  // namespace ortmodule
