// Loads and stores of several elements at once: one instruction of up to 16 bytes where the address
// allows it, else element by element. Nothing is assumed about divisibility.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/scalar_math.h"

namespace ortmodule::cuda {

inline constexpr size_t kVectorBytes = 16;

/// Elements of T in a vector of 16 bytes.
template <class T>
inline constexpr int kVectorCount = static_cast<int>(kVectorBytes / sizeof(T));

template <class T, int kCount>
struct alignas(sizeof(T) * kCount < kVectorBytes ? sizeof(T) * kCount : kVectorBytes) Vector {
  T at[kCount];
};

/// Whether `pointer` may be read as a Vector<T, kCount>.
template <class T, int kCount>
ORTM_HD bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % alignof(Vector<T, kCount>) == 0;
}

/// kCount consecutive elements; `from` must be aligned for them.
template <class T, int kCount>
__device__ __forceinline__ void load_vector(T (&to)[kCount], const T* from) {
  const Vector<T, kCount> v = *reinterpret_cast<const Vector<T, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = v.at[i];
}

template <class T, int kCount>
__device__ __forceinline__ void store_vector(T* to, const T (&from)[kCount]) {
  Vector<T, kCount> v;
#pragma unroll
  for (int i = 0; i < kCount; ++i) v.at[i] = from[i];
  *reinterpret_cast<Vector<T, kCount>*>(to) = v;
}

/// The first `count` of kCount consecutive elements; the others become `rest`. `vectors`: whether
/// `from` is aligned.
template <class T, int kCount>
__device__ __forceinline__ void load_some(T (&to)[kCount], const T* from, int count, bool vectors,
                                          T rest = T{}) {
  if (vectors && count >= kCount) {
    load_vector(to, from);
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = i < count ? from[i] : rest;
}

template <class T, int kCount>
__device__ __forceinline__ void store_some(T* to, const T (&from)[kCount], int count,
                                           bool vectors) {
  if (vectors && count >= kCount) {
    store_vector(to, from);
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (i < count) to[i] = from[i];
}

}  // namespace ortmodule::cuda
