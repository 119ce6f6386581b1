// exp(x - max) as rows of softmax and their losses need it: of numbers up to 0, and NaN.
#pragma once

#include <cmath>

#include "kernels/stored_element.h"

namespace ortmodule::cuda {

/// fast_exp() of a difference, bit for bit, without what only larger numbers need.
__device__ __forceinline__ float exp_of_difference(float x) {
  const auto [y, n] = exp_parts(x);
  return x < -86.64f ? 0.0f : y * power_of_two(n);
}
__device__ __forceinline__ double exp_of_difference(double x) { return std::exp(x); }

/// The same for rows stored as T. The processor's 2^x takes a third of the instructions; its error,
/// a relative 2^-22 and |x| 2^-24 from the multiplication, is lost in the rounding to 16 bits.
template <class T>
__device__ __forceinline__ ComputeOf<T> exp_in_row(ComputeOf<T> x) {
  if constexpr (kIsHalf<T>) {
    constexpr float kLog2E = 1.44269504088896341f;
#if defined(__CUDA_ARCH__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * kLog2E));
    return y;
#else
    return std::exp2(x * kLog2E);
#endif
  } else {
    return exp_of_difference(x);
  }
}

/// The larger of a and b, or the one that is no NaN: sums of exponentials show NaN anyway.
__device__ __forceinline__ float larger_number(float a, float b) { return std::fmax(a, b); }
__device__ __forceinline__ double larger_number(double a, double b) { return std::fmax(a, b); }

}  // namespace ortmodule::cuda
