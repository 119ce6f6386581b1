// Vectors of floats from bytes in memory, and of integers to bytes.
#pragma once

#include <type_traits>

#include "kernels/cpu/half_rows.h"

namespace ortmodule {
inline namespace ORTM_ISA {

// By name: GCC 12 makes scalar code of __builtin_convertvector from bytes. (The plain forms of
// AVX-512 make it warn of its own headers.)
#if defined(__AVX512F__)
template <>
inline FloatVec load_wide<FloatVec, int8_t>(const int8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return FloatLanes(_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, bytes)));
}
template <>
inline FloatVec load_wide<FloatVec, uint8_t>(const uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return FloatLanes(_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepu8_epi32(0xffff, bytes)));
}
#elif defined(__AVX2__)
template <>
inline FloatVec load_wide<FloatVec, int8_t>(const int8_t* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return FloatLanes(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
}
template <>
inline FloatVec load_wide<FloatVec, uint8_t>(const uint8_t* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return FloatLanes(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)));
}
#else
template <class Lanes, class Q>
inline FloatVec widened_bytes(const Q* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return __builtin_convertvector(__builtin_convertvector(lanes, IntLanes), FloatLanes);
}
template <>
inline FloatVec load_wide<FloatVec, int8_t>(const int8_t* from) {
  typedef int8_t Lanes __attribute__((vector_size(kVectorBytes / 4)));
  return widened_bytes<Lanes>(from);
}
template <>
inline FloatVec load_wide<FloatVec, uint8_t>(const uint8_t* from) {
  typedef uint8_t Lanes __attribute__((vector_size(kVectorBytes / 4)));
  return widened_bytes<Lanes>(from);
}
#endif

#if defined(__AVX2__)
/// Ties to even.
inline IntLanes nearest_integers(FloatVec x) {
#if defined(__AVX512F__)
  return IntLanes(_mm512_maskz_cvtps_epi32(0xffff, __m512(x.v)));
#else
  return IntLanes(_mm256_cvtps_epi32(__m256(x.v)));
#endif
}

/// Integers as bytes, which saturate; those below `least` become it.
template <class Q>
inline void store_bytes(IntLanes a, IntLanes b, IntLanes c, IntLanes d, Q least, Q* y) {
  constexpr bool kSigned = std::is_signed_v<Q>;
#if defined(__AVX512BW__)
  constexpr __mmask32 kPairs = ~__mmask32{0};  // GCC 12 warns of the forms without a mask
  constexpr __mmask64 kAll = ~__mmask64{0};
  const __m512i ab = _mm512_maskz_packs_epi32(kPairs, __m512i(a), __m512i(b)),
                cd = _mm512_maskz_packs_epi32(kPairs, __m512i(c), __m512i(d)),
                low = _mm512_set1_epi8(static_cast<char>(least));
  const __m512i bytes =
      kSigned ? _mm512_maskz_max_epi8(kAll, _mm512_maskz_packs_epi16(kAll, ab, cd), low)
              : _mm512_maskz_max_epu8(kAll, _mm512_maskz_packus_epi16(kAll, ab, cd), low);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(y, _mm512_maskz_permutexvar_epi32(0xffff, order, bytes));
#else
  const __m256i ab = _mm256_packs_epi32(__m256i(a), __m256i(b)),
                cd = _mm256_packs_epi32(__m256i(c), __m256i(d)),
                low = _mm256_set1_epi8(static_cast<char>(least));
  const __m256i bytes = kSigned ? _mm256_max_epi8(_mm256_packs_epi16(ab, cd), low)
                                : _mm256_max_epu8(_mm256_packus_epi16(ab, cd), low);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm256_permutevar8x32_epi32(bytes, order));
#endif
}
#endif

}  // namespace ORTM_ISA
}  // namespace ortmodule
