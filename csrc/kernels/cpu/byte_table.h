// A function of one byte as a table of its results.
#pragma once

#include <cstdint>

#include "kernels/cpu/float_vec.h"

namespace ortmodule {
inline namespace ORTM_ISA {

inline constexpr int64_t kByteValues = 256;
/// Fewer elements take less time without a table.
inline constexpr int64_t kLeastLookedUp = 8 * kByteValues;

/// By the byte's bits.
struct ByteTable {
  alignas(64) uint8_t entries[kByteValues];
};

/// Each byte itself: what a table is computed from.
inline ByteTable byte_values() {
  ByteTable values;
  for (int64_t i = 0; i < kByteValues; ++i) values.entries[i] = static_cast<uint8_t>(i);
  return values;
}

#if defined(__AVX512BW__)
/// Whole vectors of 64 bytes; returns how many bytes they are. The instruction looks up 128
/// entries.
__attribute__((target("avx512vbmi"))) inline int64_t look_up_halves(const ByteTable& table,
                                                                    const uint8_t* from,
                                                                    int64_t count, uint8_t* to) {
  const auto part = [&](int i) { return _mm512_load_si512(table.entries + 64 * i); };
  const __m512i a = part(0), b = part(1), c = part(2), d = part(3);
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const __m512i x = _mm512_loadu_si512(from + i);
    const __m512i low = _mm512_permutex2var_epi8(a, x, b), high = _mm512_permutex2var_epi8(c, x, d);
    _mm512_storeu_si512(to + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high));
  }
  return i;
}
#endif

/// to[i] = table[from[i]]. Without the instruction for it in rows of 16 bytes, which a shuffle
/// looks up: of indices of other rows it makes zeros.
inline void look_up(const ByteTable& table, const uint8_t* from, int64_t count, uint8_t* to) {
  int64_t i = 0;
#if defined(__AVX512BW__)
  static const bool has_instruction = __builtin_cpu_supports("avx512vbmi");
  if (has_instruction) i = look_up_halves(table, from, count, to);
  for (; i + 64 <= count; i += 64) {
    const __m512i x = _mm512_loadu_si512(from + i);
    __m512i y = _mm512_setzero_si512();
    ORTM_UNROLL
    for (int row = 0; row < 16; ++row) {
      const __m512i entries = _mm512_maskz_broadcast_i32x4(
          0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(table.entries + 16 * row)));
      const __m512i inside = _mm512_xor_si512(x, _mm512_set1_epi8(static_cast<char>(16 * row)));
      const __m512i index = _mm512_adds_epu8(inside, _mm512_set1_epi8(0x70));
      y = _mm512_or_si512(y, _mm512_shuffle_epi8(entries, index));
    }
    _mm512_storeu_si512(to + i, y);
  }
#elif defined(__AVX2__)
  for (; i + 32 <= count; i += 32) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    __m256i y = _mm256_setzero_si256();
    ORTM_UNROLL
    for (int row = 0; row < 16; ++row) {
      const __m256i entries = _mm256_broadcastsi128_si256(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(table.entries + 16 * row)));
      const __m256i inside = _mm256_xor_si256(x, _mm256_set1_epi8(static_cast<char>(16 * row)));
      const __m256i index = _mm256_adds_epu8(inside, _mm256_set1_epi8(0x70));
      y = _mm256_or_si256(y, _mm256_shuffle_epi8(entries, index));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), y);
  }
#endif
  for (; i < count; ++i) to[i] = table.entries[from[i]];
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
