// Numbers of 2 to 8 bits: what a byte of such an element type means, and rounding to it.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace ortmodule {

/// Which power of two a float8e8m0 becomes that lies between two.
enum class PowerRounding : uint8_t { Up, Down, Nearest };

struct NarrowRounding {
  /// What is beyond the largest number, infinity included, becomes the largest one; else infinity,
  /// or NaN in types without infinity. float4e2m1, which has neither, always saturates.
  bool saturate = true;
  PowerRounding powers = PowerRounding::Up;
};

/// A float of `1 + exponent_bits + fraction_bits` bits. Formats: ONNX's operators document, "Float
/// stored in 8 bits"; OCP Microscaling Formats (MX) 1.0.
struct NarrowFormat {
  int exponent_bits, fraction_bits, bias;
  uint8_t largest;  // bits of the largest finite number
  int infinity;     // bits without sign, or -1
  int nan;          // bits, or -1
  bool one_zero;    // the bits of -0 are those of NaN
};

/// The format of a narrow float with a fraction: not of float8e8m0.
NarrowFormat narrow_format(DType dtype);

/// The number of an element of a narrow float or integer, exactly. `bits` beyond those of the type
/// are ignored.
float narrow_value(uint8_t bits, DType dtype);

/// The element nearest to `value`, ties to even; integers wrap around. As ONNX's Cast demands.
uint8_t narrow_bits(float value, DType dtype, const NarrowRounding& rounding = {});

/// Elements of `packed_bits(dtype)` bits, the first in the lowest bits, as a byte each (integers
/// with their sign), and back.
void unpack_elements(const char* packed, int64_t count, DType dtype, char* bytes);
/// Makes bytes of narrow integers, whose other bits may be anything, those of their numbers.
void extend_integers(char* bytes, int64_t count, DType dtype);
void pack_elements(const char* bytes, int64_t count, DType dtype, char* packed);

}  // namespace ortmodule
