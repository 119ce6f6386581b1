// Conversions of 16-bit floats by the processor's own instructions, with the bits of to_float16()
// and the others: the instructions make one pattern of every NaN, ours keep its sign.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/vector_access.cuh"
#include "kernels/stored_element.h"

namespace ortmodule::cuda {

__device__ __forceinline__ BFloat16 narrowed(float x, BFloat16) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return {x != x ? static_cast<uint16_t>(0x7fc0) : bits};
#else
  return to_bfloat16(x);
#endif
}
__device__ __forceinline__ Float16 narrowed(float x, Float16) {
#if defined(__CUDA_ARCH__)
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  const uint32_t nan = 0x7e00u | ((bits_of(x) >> 16) & 0x8000u);
  return {x != x ? static_cast<uint16_t>(nan) : bits};
#else
  return to_float16(x);
#endif
}
__device__ __forceinline__ float widened(Float16 x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  const uint32_t nan = 0x7f800000u | (uint32_t{x.bits} & 0x3ffu) << 13;
  return y != y ? float_of(nan | (uint32_t{x.bits} & 0x8000u) << 16) : y;
#else
  return to_float(x);
#endif
}
__device__ __forceinline__ float widened(BFloat16 x) { return to_float(x); }

// Others are stored as they are computed.
__device__ __forceinline__ float narrowed(float x, float) { return x; }
__device__ __forceinline__ double narrowed(double x, double) { return x; }
__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ double widened(double x) { return x; }

/// narrowed() of kCount values. Two bfloat16 are one instruction if none is NaN.
template <class T, class C, int kCount>
__device__ __forceinline__ Words<T, kCount> narrow(const C (&from)[kCount]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, BFloat16> && kCount % 2 == 0) {
    bool has_nan = false;
#pragma unroll
    for (int k = 0; k < kCount; k += 2) has_nan |= from[k] != from[k] || from[k + 1] != from[k + 1];
    if (!has_nan) {
      Words<T, kCount> words;
#pragma unroll
      for (int k = 0; k < kCount; k += 2) {
        uint32_t pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(from[k + 1]), "f"(from[k]));
        words.set_word(k / 2, pair);
      }
      return words;
    }
  }
#endif
  T elements[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) elements[k] = narrowed(from[k], T{});
  return Words<T, kCount>::of(elements);
}

}  // namespace ortmodule::cuda
