// Vectors of floats from bytes in memory.
#pragma once

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

}  // namespace ORTM_ISA
}  // namespace ortmodule
