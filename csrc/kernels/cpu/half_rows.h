// Elements of 16 bits as floats: vectors of them, and rows, by the instructions that convert.
#pragma once

#include <type_traits>

#include "kernels/cpu/double_vec.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {

typedef uint16_t HalfLanes __attribute__((vector_size(kVectorBytes / 2)));

/// FloatVec::kCount elements from `from` on, or as many doubles as DoubleVec has.
template <class V, class T>
inline V load_wide(const T* from) {
  if constexpr (!kIsHalf<T>) {
    return V::load(from);
  } else {
    static_assert(std::is_same_v<V, FloatVec>);
    HalfLanes lanes;
    std::memcpy(&lanes, from, sizeof(lanes));
    if constexpr (std::is_same_v<T, BFloat16>)
      return float_of(UIntVec{__builtin_convertvector(lanes, UIntLanes)} << 16);
#if defined(__AVX512F__)  // the maskz form: see double_vec.h
    return FloatLanes(_mm512_maskz_cvtph_ps(0xffff, __m256i(lanes)));
#elif defined(__F16C__)
    return FloatLanes(_mm256_cvtph_ps(__m128i(lanes)));
#else
    float wide[FloatVec::kCount];
    for (int64_t i = 0; i < FloatVec::kCount; ++i) wide[i] = to_float(Float16{lanes[i]});
    return FloatVec::load(wide);
#endif
  }
}

/// The vector as halves at `to`, as to_float16() rounds; false, and nothing is written, if it may
/// not be so: of a NaN the instruction keeps some bits.
inline bool narrow_vector(FloatVec v, Float16* to) {
#if defined(__AVX512F__)
  if (_mm512_cmp_ps_mask(__m512(v.v), __m512(v.v), _CMP_UNORD_Q) != 0) return false;
  const __m256i halves = _mm512_maskz_cvtps_ph(0xffff, __m512(v.v), _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(to, &halves, sizeof(halves));
  return true;
#elif defined(__F16C__)
  const __m256 unordered = _mm256_cmp_ps(__m256(v.v), __m256(v.v), _CMP_UNORD_Q);
  if (_mm256_movemask_ps(unordered) != 0) return false;
  const __m128i halves = _mm256_cvtps_ph(__m256(v.v), _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(to, &halves, sizeof(halves));
  return true;
#else
  for (int64_t i = 0; i < FloatVec::kCount; ++i) to[i] = to_float16(v.v[i]);
  return true;
#endif
}

/// Narrows a dense row.
inline void narrow_row(const float* from, int64_t count, Float16* to) {
  constexpr int64_t kCount = FloatVec::kCount;
  for (int64_t i = 0; i < count; i += kCount) {
    if (i + kCount <= count && narrow_vector(FloatVec::load(from + i), to + i)) continue;
    for (int64_t j = i; j < std::min(count, i + kCount); ++j) to[j] = to_float16(from[j]);
  }
}

/// Widens a dense row.
template <class T>
inline void widen_row(const T* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + FloatVec::kCount <= count; i += FloatVec::kCount)
    load_wide<FloatVec>(from + i).store(to + i);
  for (; i < count; ++i) to[i] = to_float(from[i]);
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
