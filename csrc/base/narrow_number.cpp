#include "base/narrow_number.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace ortmodule {

NarrowFormat narrow_format(DType dtype) {
  switch (dtype) {
    case DType::Float8E4M3FN: return {4, 3, 7, 0x7e, -1, 0x7f, false};
    case DType::Float8E4M3FNUZ: return {4, 3, 8, 0x7f, -1, 0x80, true};
    case DType::Float8E5M2: return {5, 2, 15, 0x7b, 0x7c, 0x7e, false};
    case DType::Float8E5M2FNUZ: return {5, 2, 16, 0x7f, -1, 0x80, true};
    case DType::Float4E2M1: return {2, 1, 1, 0x7, -1, -1, false};
    default: throw InternalError("a narrow float of another type");
  }
}

namespace {

float power_value(uint8_t bits) {
  if (bits == 0xff) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, static_cast<int>(bits) - 127);
}

// The exponent of the number, rounded; its sign is lost.
uint8_t power_bits(float value, const NarrowRounding& rounding) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t exponent = (bits >> 23) & 0xff, fraction = bits & 0x7fffff;
  if (exponent == 0xff) return 0xff;
  bool up = rounding.powers == PowerRounding::Up && fraction != 0;
  if (rounding.powers == PowerRounding::Nearest)
    up = fraction > 0x400000 || (fraction == 0x400000 && exponent > 0);
  if (exponent == 0xfe && rounding.saturate) up = false;
  return static_cast<uint8_t>(exponent + (up ? 1 : 0));
}

float magnitude_of(int bits, const NarrowFormat& f) {
  const int exponent = bits >> f.fraction_bits, fraction = bits & ((1 << f.fraction_bits) - 1);
  if (exponent == 0) return std::ldexp(static_cast<float>(fraction), 1 - f.bias - f.fraction_bits);
  return std::ldexp(static_cast<float>(fraction + (1 << f.fraction_bits)),
                    exponent - f.bias - f.fraction_bits);
}

float float_value(uint8_t bits, const NarrowFormat& f) {
  const int sign_bit = 1 << (f.exponent_bits + f.fraction_bits);
  const int all = bits & (2 * sign_bit - 1), rest = all & (sign_bit - 1);
  if (f.one_zero ? all == f.nan : f.nan >= 0 && rest > std::max<int>(f.largest, f.infinity))
    return std::numeric_limits<float>::quiet_NaN();
  const float magnitude =
      rest == f.infinity ? std::numeric_limits<float>::infinity() : magnitude_of(rest, f);
  return all & sign_bit ? -magnitude : magnitude;
}

// Counts the magnitude in units in the last place; nearbyint rounds ties to even.
uint8_t float_bits(float value, const NarrowFormat& f, const NarrowRounding& rounding) {
  const int sign_bit = 1 << (f.exponent_bits + f.fraction_bits);
  const int sign = std::signbit(value) ? sign_bit : 0;
  const auto nan = [&] { return static_cast<uint8_t>(f.one_zero ? f.nan : f.nan | sign); };
  if (std::isnan(value)) return f.nan < 0 ? static_cast<uint8_t>(sign_bit) : nan();
  const auto beyond = [&] {
    if (rounding.saturate || f.nan < 0) return static_cast<uint8_t>(f.largest | sign);
    return f.infinity >= 0 ? static_cast<uint8_t>(f.infinity | sign) : nan();
  };
  if (std::isinf(value)) return beyond();
  const double magnitude = std::fabs(static_cast<double>(value));
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int lowest = 1 - f.bias - f.fraction_bits;
  const int unit = magnitude == 0.0 ? lowest : std::max(exponent - 1 - f.fraction_bits, lowest);
  const auto count = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -unit)));
  // A count of two times the implicit bit correctly carries into the exponent.
  const int64_t bits = (static_cast<int64_t>(unit - lowest) << f.fraction_bits) + count;
  if (bits > f.largest) return beyond();
  return static_cast<uint8_t>(bits == 0 && f.one_zero ? 0 : bits | sign);
}

int64_t integer_value(uint8_t bits, DType dtype) {
  const int width = packed_bits(dtype);
  const int value = bits & ((1 << width) - 1);
  const bool negative = byte_dtype(dtype) == DType::Int8 && (value >> (width - 1)) != 0;
  return negative ? value - (1 << width) : value;
}

}  // namespace

float narrow_value(uint8_t bits, DType dtype) {
  if (is_narrow_integer(dtype)) return static_cast<float>(integer_value(bits, dtype));
  return dtype == DType::Float8E8M0 ? power_value(bits) : float_value(bits, narrow_format(dtype));
}

uint8_t narrow_bits(float value, DType dtype, const NarrowRounding& rounding) {
  if (is_narrow_integer(dtype)) {
    constexpr float kMost = 0x1p30f;
    const float kept = std::isnan(value) ? 0.0f : std::clamp(value, -kMost, kMost);
    return static_cast<uint8_t>(integer_value(static_cast<uint8_t>(static_cast<int>(kept)), dtype));
  }
  return dtype == DType::Float8E8M0 ? power_bits(value, rounding)
                                    : float_bits(value, narrow_format(dtype), rounding);
}

void unpack_elements(const char* packed, int64_t count, DType dtype, char* bytes) {
  const int width = packed_bits(dtype), per_byte = 8 / width;
  for (int64_t i = 0; i < count; ++i) {
    const auto byte = static_cast<uint8_t>(packed[i / per_byte]);
    const auto bits = static_cast<uint8_t>((byte >> (width * (i % per_byte))) & ((1 << width) - 1));
    bytes[i] = static_cast<char>(is_narrow_integer(dtype) ? integer_value(bits, dtype) : bits);
  }
}

void extend_integers(char* bytes, int64_t count, DType dtype) {
  for (int64_t i = 0; i < count; ++i)
    bytes[i] = static_cast<char>(integer_value(static_cast<uint8_t>(bytes[i]), dtype));
}

void pack_elements(const char* bytes, int64_t count, DType dtype, char* packed) {
  const int width = packed_bits(dtype), per_byte = 8 / width;
  std::fill_n(packed, (count + per_byte - 1) / per_byte, '\0');
  for (int64_t i = 0; i < count; ++i) {
    const int bits = static_cast<uint8_t>(bytes[i]) & ((1 << width) - 1);
    char& byte = packed[i / per_byte];
    byte = static_cast<char>(static_cast<uint8_t>(byte) | (bits << (width * (i % per_byte))));
  }
}

}  // namespace ortmodule
