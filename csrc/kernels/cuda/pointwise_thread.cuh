// What the generated code of a pointwise group (pointwise_source.h) is written in. Included by that
// code only: NVRTC compiles it, and the C++ compiler for the tests' emulation.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/half_conversion.cuh"
#include "kernels/cuda/pointwise_launch.h"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/philox.h"
#include "kernels/pointwise_activation.h"
#include "kernels/pointwise_arithmetic.h"
#include "kernels/pointwise_comparison.h"
#include "kernels/pointwise_convert.h"
#include "kernels/pointwise_elementary.h"
#include "kernels/pointwise_gradient.h"
#include "kernels/pointwise_random.h"

namespace ortmodule::cuda {

// --- conversions ---------------------------------------------------------------------------------
/// An element of memory in its computation type.
template <class T>
__device__ __forceinline__ auto read(T x) {
  if constexpr (kIsHalf<T>) {
    return widened(x);
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    return static_cast<int64_t>(x);
  } else {
    return x;
  }
}

/// An element of memory for a computed value.
template <class T, class C>
__device__ __forceinline__ T written(C x) {
  if constexpr (kIsHalf<T>) {
    return narrowed(static_cast<float>(x), T{});
  } else {
    return static_cast<T>(x);
  }
}

// --- constants -----------------------------------------------------------------------------------
template <class T>
__device__ __forceinline__ T constant(const PointwiseLaunch& launch, int index) {
  const uint64_t word = launch.constants[index];
  if constexpr (std::is_same_v<T, bool>) {
    return word != 0;
  } else if constexpr (std::is_same_v<T, float>) {
    return float_of(static_cast<uint32_t>(word));
  } else {
    return static_cast<T>(word);
  }
}

/// Attributes that the code has as bits; equal nodes of several layers differ in their stream only.
__device__ __forceinline__ MicroParams params_of(uint64_t number0, uint64_t number1, uint64_t word0,
                                                 uint64_t word1) {
  MicroParams params;
  memcpy(&params.number[0], &number0, sizeof(number0));
  memcpy(&params.number[1], &number1, sizeof(number1));
  params.word[0] = word0;
  params.word[1] = word1;
  return params;
}

// --- memory --------------------------------------------------------------------------------------
/// Coordinates of a position in a space of kDims dimensions.
template <int kDims>
struct Coordinates {
  uint32_t at[kDims];

  __device__ __forceinline__ Coordinates(const PointwiseLaunch& launch, uint32_t position) {
#pragma unroll
    for (int d = kDims - 1; d > 0; --d) {
      const uint32_t rest = launch.sizes[d].quotient(position);
      at[d] = position - rest * launch.sizes[d].divisor;
      position = rest;
    }
    at[0] = position;
  }
};

/// A coordinate times a stride that fits into 32 bits.
__device__ __forceinline__ int64_t step(uint32_t coordinate, int64_t stride) {
  return static_cast<int64_t>(static_cast<int32_t>(coordinate)) * static_cast<int32_t>(stride);
}

/// Random words of kEach elements in logical order; the first one's index is a multiple of kEach.
template <int kEach>
__device__ __forceinline__ void draw(uint32_t (&words)[kEach], uint64_t seed, uint64_t stream,
                                     uint64_t index) {
  if constexpr (kEach % 4 == 0) {
#pragma unroll
    for (int e = 0; e < kEach; e += 4) {
      const PhiloxBlock block = philox_block(seed, stream, (index + e) / 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) words[e + i] = block.word[i];
    }
  } else {
    words[0] = philox_word(seed, stream, index);
  }
}

// --- a thread ------------------------------------------------------------------------------------
/// Position of a thread's first element: its vectors lie one block's vector apart, so that lanes
/// that lie side by side access memory side by side.
template <int kVectors, int kEach>
__device__ __forceinline__ uint32_t first_position() {
  return (blockIdx.x * kVectors * blockDim.x + threadIdx.x) * kEach;
}

/// Group::run<kVectors, kEach>(launch, first position, distance of vectors) for the elements of a
/// thread; in the last block, where they are not all there, by single vectors and elements.
template <class Group, int kVectors, int kEach>
__device__ __forceinline__ void run_thread(const PointwiseLaunch& launch) {
  const uint32_t first = first_position<kVectors, kEach>();
  const uint32_t distance = blockDim.x * kEach;
  if constexpr (kVectors > 1) {
    if (first + (kVectors - 1) * distance + kEach <= launch.total)
      return Group::template run<kVectors, kEach>(launch, first, distance);
  }
#pragma unroll 1
  for (int v = 0; v < kVectors; ++v) {
    const uint32_t position = first + v * distance;
    if (position + kEach <= launch.total) {
      Group::template run<1, kEach>(launch, position, distance);
      continue;
    }
#pragma unroll 1
    for (int e = 0; e < kEach; ++e)
      if (position + e < launch.total) Group::template run<1, 1>(launch, position + e, distance);
  }
}

}  // namespace ortmodule::cuda
