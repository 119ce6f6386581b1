// What a number becomes as an element of a tensor.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace ortmodule {

/// The bits of the nearest 16-bit float, halves to even; NaN has one form.
uint16_t float16_bits(float value);
uint16_t bfloat16_bits(float value);

/// `value` as an element of type `dtype` holds it: small integers wrap around, 16-bit floats round,
/// after float32. What lies beyond 64 bits, and types that hold it as it is, stay the same.
double element_value(double value, DType dtype);

}  // namespace ortmodule
