// Division of 32-bit numbers by a divisor that is known before the loop: one multiplication and a
// shift (T. Granlund, P. Montgomery, "Division by invariant integers using multiplication", 1994).
#pragma once

#include <cstdint>

#include "kernels/integer_division.h"
#include "kernels/scalar_math.h"

namespace ortmodule::cuda {

/// Exact for dividends and divisors from 0 (1) to 2^31.
struct FastDivisor {
  uint32_t divisor = 1;
  uint32_t multiplier = 1;
  uint32_t shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(uint32_t d) : divisor(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<uint32_t>(((((uint64_t{1} << shift) - d) << 32) / d) + 1);
  }
  ORTM_HD uint32_t quotient(uint32_t n) const {
    const uint32_t high = static_cast<uint32_t>((uint64_t{n} * multiplier) >> 32);
    return (high + n) >> shift;
  }
};

// As in kernels/integer_division.h, which this namespace would hide from templates.
using ortmodule::quotient;
using ortmodule::value_of;
ORTM_HD int32_t quotient(int32_t n, const FastDivisor& d) {
  return static_cast<int32_t>(d.quotient(static_cast<uint32_t>(n)));
}
ORTM_HD int32_t value_of(const FastDivisor& d) { return static_cast<int32_t>(d.divisor); }

}  // namespace ortmodule::cuda
