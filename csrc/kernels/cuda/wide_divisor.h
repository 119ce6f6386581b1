// Division of 64-bit numbers as in fast_divisor.h: by the instruction set's means it is a call,
// around which registers are saved to memory.
#pragma once

#include <cstdint>

#include "kernels/scalar_math.h"

namespace ortmodule::cuda {

/// The upper 64 bits of a b.
ORTM_HD uint64_t high_product(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  constexpr uint64_t kLow = 0xffffffffu;
  const uint64_t low = (a & kLow) * (b & kLow);
  const uint64_t left = (a >> 32) * (b & kLow) + (low >> 32);
  const uint64_t right = (a & kLow) * (b >> 32) + (left & kLow);
  return (a >> 32) * (b >> 32) + (left >> 32) + (right >> 32);
#endif
}

/// Exact for dividends and divisors from 0 (1) to 2^63.
struct WideDivisor {
  uint64_t multiplier = 1;
  int shift = 0;

  WideDivisor() = default;
  explicit WideDivisor(uint64_t d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    uint64_t rest = (uint64_t{1} << shift) - d, quotient = 0;  // of rest 2^64 / d, bit by bit
    for (int bit = 0; bit < 64; ++bit) {
      rest *= 2;
      quotient = 2 * quotient + (rest >= d ? 1 : 0);
      if (rest >= d) rest -= d;
    }
    multiplier = quotient + 1;
  }
  ORTM_HD uint64_t quotient(uint64_t n) const { return (high_product(n, multiplier) + n) >> shift; }
};

}  // namespace ortmodule::cuda
