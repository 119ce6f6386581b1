// Rounding of numbers to element types.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace ortmodule {

/// The bits of the nearest 16-bit float, ties to even; all NaNs have the same bits.
uint16_t float16_bits(float value);
uint16_t bfloat16_bits(float value);

/// The number of a 16-bit float.
float float_of_bits(uint16_t bits, DType dtype);

/// `value` cast to `dtype`: integers below 64 bits wrap around, floats round (16-bit floats from
/// float32). A value beyond 64 bits is returned unchanged, as is one of the other types.
double element_value(double value, DType dtype);

}  // namespace ortmodule
