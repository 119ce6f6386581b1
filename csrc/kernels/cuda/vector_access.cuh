// Loads and stores of several elements at once: one instruction of up to 16 bytes where the address
// allows it, else element by element. Nothing is assumed about divisibility.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

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

/// kCount consecutive elements, at an address aligned for them, as the words that memory gives: an
/// element is taken out where it is used, and what chooses between vectors chooses between words.
template <class T, int kCount>
class Words {
 public:
  __device__ static __forceinline__ Words load(const T* from) {
    Words words;
    if constexpr (kBytes < 4) {
      const Vector<T, kCount> v = *reinterpret_cast<const Vector<T, kCount>*>(from);
      memcpy(words.at_, v.at, kBytes);
    } else {
      const InMemory v = *reinterpret_cast<const InMemory*>(from);
#pragma unroll
      for (int i = 0; i < kWords; ++i) words.at_[i] = v.at[i];
    }
    return words;
  }
  __device__ static __forceinline__ Words of(const T (&elements)[kCount]) {
    Words words;
    memcpy(words.at_, elements, kBytes);
    return words;
  }
  /// kCount times x.
  __device__ static __forceinline__ Words filled(T x) {
    T elements[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) elements[k] = x;
    return of(elements);
  }
  __device__ __forceinline__ void store(T* to) const {
    if constexpr (kBytes < 4) {
      Vector<T, kCount> v;
      memcpy(v.at, at_, kBytes);
      *reinterpret_cast<Vector<T, kCount>*>(to) = v;
    } else {
      InMemory v;
#pragma unroll
      for (int i = 0; i < kWords; ++i) v.at[i] = at_[i];
      *reinterpret_cast<InMemory*>(to) = v;
    }
  }
  __device__ __forceinline__ void set_word(int i, uint32_t word) { at_[i] = word; }
  __device__ __forceinline__ T operator[](int k) const {
    T x;
    if constexpr (sizeof(T) < 4) {
      constexpr int kOfWord = static_cast<int>(4 / sizeof(T));
      const uint32_t word = at_[k / kOfWord] >> (k % kOfWord * static_cast<int>(8 * sizeof(T)));
      memcpy(&x, &word, sizeof(T));
    } else {
      memcpy(&x, &at_[k * static_cast<int>(sizeof(T) / 4)], sizeof(T));
    }
    return x;
  }

 private:
  static constexpr size_t kBytes = sizeof(T) * kCount;
  static constexpr int kWords = static_cast<int>((kBytes + 3) / 4);
  struct alignas(Vector<T, kCount>) [[gnu::may_alias]] InMemory {
    uint32_t at[kWords];
  };
  uint32_t at_[kWords] = {};
};

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
