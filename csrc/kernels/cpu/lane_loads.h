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

/// Elements from, from + step, ... for a `step` of 1 or 2; `otherwise` in lanes from `count` on.
/// Nothing behind the last element is touched.
inline FloatVec load_strided(const float* from, int64_t step, int64_t count, FloatVec otherwise) {
  constexpr int64_t kCount = FloatVec::kCount;
  const int64_t elements = step * (std::min(count, kCount) - 1) + 1;
  FloatVec x = load_at_most(from, elements);
  if (step == 2) x = every_other_lane<0>(x, load_at_most(from + kCount, elements - kCount));
  return count < kCount ? select(first_lanes(count), x, otherwise) : x;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
