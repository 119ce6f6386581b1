// scalar_elementary.h's functions of vectors.
#pragma once

#include "kernels/cpu/double_vec.h"
#include "kernels/scalar_elementary.h"

namespace ortmodule {
inline namespace ORTM_ISA {

inline FloatVec signed_number(UIntVec bits) {
  return __builtin_convertvector(reinterpret_cast<IntLanes>(bits.v), FloatLanes);
}
/// Whether any lane of a comparison is true.
inline bool any_of(IntLanes mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(__m512i(mask), __m512i(mask)) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256(__m256i(mask), __m256i(mask));
#else
  uint64_t halves[2];
  std::memcpy(halves, &mask, sizeof(mask));
  return (halves[0] | halves[1]) != 0;
#endif
}
inline FloatVec fast_log(FloatVec x) { return log_of(x); }
inline FloatVec fast_log1p(FloatVec x) { return log1p_of(x); }
inline FloatVec fast_expm1(FloatVec x) { return expm1_of(x); }

inline FloatVec square_root(FloatVec x) {
#if defined(__AVX512F__)
  return FloatLanes(_mm512_maskz_sqrt_ps(0xffff, __m512(x.v)));
#elif defined(__AVX2__)
  return FloatLanes(_mm256_sqrt_ps(__m256(x.v)));
#else
  for (int i = 0; i < FloatVec::kCount; ++i) x.v[i] = std::sqrt(x.v[i]);
  return x;
#endif
}
inline FloatVec fast_asin(FloatVec x) { return asin_of(x); }
inline FloatVec fast_acos(FloatVec x) { return acos_of(x); }
inline FloatVec fast_atan(FloatVec x) { return atan_of(x); }

/// f of each lane: for the few arguments that a formula does not cover.
template <class F>
__attribute__((noinline)) FloatVec each_lane(FloatVec x, const F& f) {
  for (int i = 0; i < FloatVec::kCount; ++i) x.v[i] = f(x.v[i]);
  return x;
}
inline FloatVec fast_sin(FloatVec x) {
  const IntLanes covered = magnitude_of(x) <= FloatVec(kLargestReduced);
  if (any_of(~covered)) [[unlikely]]
    return each_lane(x, [](float lane) { return fast_sin(lane); });
  return sine_of(x, 0);
}
inline FloatVec fast_cos(FloatVec x) {
  const IntLanes covered = magnitude_of(x) <= FloatVec(kLargestReduced);
  if (any_of(~covered)) [[unlikely]]
    return each_lane(x, [](float lane) { return fast_cos(lane); });
  return sine_of(x, 1);
}

inline DoubleVec power_of_two_in_double(DoubleVec shifted) {
  const LongLanes bits = reinterpret_cast<LongLanes>(shifted.v) << 52;
  return reinterpret_cast<DoubleLanes>(bits + (int64_t{1023} << 52));
}

inline DoubleVec within(DoubleVec x, double limit) {
  const DoubleVec most(limit), least(-limit);
#if defined(__AVX512F__)  // of a NaN and a number these give the second operand
  const __m512d below = _mm512_maskz_min_pd(0xff, __m512d(most.v), __m512d(x.v));
  return DoubleLanes(_mm512_maskz_max_pd(0xff, __m512d(least.v), below));
#elif defined(__AVX2__)
  return DoubleLanes(_mm256_max_pd(__m256d(least.v), _mm256_min_pd(__m256d(most.v), __m256d(x.v))));
#else
  const DoubleVec below = select(x > most, most, x);
  return select(below < least, least, below);
#endif
}
inline FloatVec power_through_double(FloatVec m, FloatVec k, FloatVec y) {
  const DoubleHalves ms(m), ks(k);
  DoubleHalves result(y);
  for (int i = 0; i < 2; ++i)
    result.half[i] = power_of_parts(ms.half[i], ks.half[i], result.half[i]);
  return result.rounded();
}
inline FloatVec fast_pow(FloatVec x, FloatVec y) { return power_of(x, y); }

}  // namespace ORTM_ISA
}  // namespace ortmodule
