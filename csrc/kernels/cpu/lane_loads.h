// Vectors of elements that end within a vector, or lie at every other place.
#pragma once

#include <algorithm>

#include "kernels/cpu/float_vec.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Lanes 0, 2, 4, ... of two vectors one after the other, or lanes 1, 3, 5, ...
template <int kFirst>
FloatVec every_other_lane(FloatVec a, FloatVec b) {
  IntLanes lanes;
  for (int lane = 0; lane < FloatVec::kCount; ++lane) lanes[lane] = 2 * lane + kFirst;
  return __builtin_shuffle(a.v, b.v, lanes);
}

/// The first `count` lanes, zeros if that is not positive.
inline FloatVec load_at_most(const float* from, int64_t count) {
  if (count >= FloatVec::kCount) return FloatVec::load(from);
  return count > 0 ? FloatVec::load(from, count) : FloatVec(0.0f);
}

/// Elements from, from + step, ..., where kStep is `step` or, for any, 0. Nothing behind the last
/// of them is touched.
template <int64_t kStep>
FloatVec load_every(const float* from, int64_t step) {
  constexpr int64_t kCount = FloatVec::kCount;
  if constexpr (kStep == 1) return FloatVec::load(from);
  if constexpr (kStep == 2) {
    const FloatVec a = FloatVec::load(from), b = FloatVec::load(from + kCount - 1);
#if defined(__AVX2__) && !defined(__AVX512F__)  // GCC 12 takes five instructions
    const __m256 halves = _mm256_shuffle_ps(__m256(a.v), __m256(b.v), _MM_SHUFFLE(3, 1, 2, 0));
    return FloatLanes(_mm256_permute4x64_epi64(__m256i(halves), _MM_SHUFFLE(3, 1, 2, 0)));
#else
    IntLanes lanes;
    for (int lane = 0; lane < kCount; ++lane) lanes[lane] = 2 * lane + (2 * lane >= kCount);
    return __builtin_shuffle(a.v, b.v, lanes);
#endif
  }
  FloatVec x;
  for (int64_t lane = 0; lane < kCount; ++lane) x.v[lane] = from[lane * step];
  return x;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
