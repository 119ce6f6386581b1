// Sums of integers as bytes, in fixed point: a conversion and a multiply-add each, in place of the
// product, the quotient and the comparisons that define them.
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/cpu/byte_vec.h"
#include "kernels/cpu/quantizer.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Of functions that a call would take their vectors from registers for.
#define ORTM_REGISTERS inline __attribute__((always_inline))

inline IntLanes load_integers(const int32_t* from) {
  IntLanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

/// Sums that a product has made, and what is added to them.
inline IntLanes total_of(const int32_t* sums, IntLanes added) {
  return IntLanes(UIntLanes(load_integers(sums)) + UIntLanes(added));
}

/// Steps of the result, of which the last 16 bits are a fraction: sum * steps + offset of a column
/// for (sum * factor + bias) / scale + zero. Where a result is no end of its range it has up to 256
/// steps. Of each rounding of float32 the error is 2^-24 of the number, which is half a unit of the
/// fraction up to 128 steps. So with offsets of up to 256 steps both differ by 7.5 units at most:
/// the offset and the result are rounded, each by half a unit, steps and the product in the
/// definition by two each, since they have up to 512 steps, its sum and its quotient by one each,
/// and the fraction by half a one. With offsets of up to 1024 steps they differ by 15. The integer
/// is the right one but so near to the middle of two, which is where the other bits of the fraction
/// are 0.
class SumSteps {
 public:
  SumSteps() = default;
  /// For results of scale `scale`, none below `least`, in bytes of this kind.
  SumSteps(float scale, int32_t zero, int32_t least, bool is_signed)
      : scale_(scale),
        zero_(zero + shift(is_signed)),
        least_(static_cast<uint8_t>(least + shift(is_signed))),
        flip_(is_signed ? 0x80 : 0),
        is_plain_(least_ == 0 && flip_ == 0),
        is_usual_(kExists && Quantizer::takes(scale)) {}

  /// Whether results can be made so.
  bool is_usual() const { return is_usual_; }

  /// The same for columns whose sums become real numbers by `factors` and `biases`, which may be
  /// null; makes their steps and offsets, with those of up to 15 columns that do not exist.
  SumSteps of_columns(const float* factors, const float* biases, int64_t count, float* steps,
                      float* offsets) const {
    SumSteps own = *this;
    if (!is_usual_) return own;
    const double inverse = 1.0 / double{scale_}, middle = zero_ + 0.5;
    const auto bias_steps = [&](int64_t i) { return biases ? biases[i] * inverse : 0.0; };
    uint32_t most_steps = 0, most_offset = 0;  // bits, which compare as magnitudes do, NaN included
    for (int64_t i = 0; i < count; ++i) {
      steps[i] = static_cast<float>(factors[i] * inverse * kUnit);
      most_steps = std::max(most_steps, magnitude_bits(steps[i]));
      most_offset =
          std::max(most_offset, magnitude_bits(static_cast<float>(bias_steps(i) + middle)));
    }
    own.is_usual_ = most_steps < magnitude_bits(0x1p100f) && most_offset < magnitude_bits(1023.0f);
    const double doubt = most_offset < magnitude_bits(255.75f) ? 8.0 : 16.0;
    own.certain_ = 0x10000 - 2 * static_cast<int32_t>(doubt);
    for (int64_t i = 0; i < count; ++i)
      offsets[i] = static_cast<float>((bias_steps(i) + middle) * kUnit + doubt);
    for (int64_t i = count; i % kBlock != 0; ++i) {  // never in doubt
      steps[i] = 0.0f;
      offsets[i] = kUnit / 2;
    }
    return own;
  }

  /// More than any byte, and not in doubt.
  static constexpr float kMost = 0x1p30f + 0x1p15f;
  /// Some of these bits of a number in fixed point are set if it is not in doubt.
  int32_t certain() const { return certain_; }
  /// What becomes of bytes: at least `least`, xor `flip`; whether these change nothing.
  uint8_t least() const { return least_; }
  uint8_t flip() const { return flip_; }
  bool is_plain() const { return is_plain_; }

#if defined(__AVX2__)
  static ORTM_REGISTERS IntLanes fixed(IntLanes sums, FloatVec steps, FloatVec offset) {
    const FloatVec sum(__builtin_convertvector(sums, FloatLanes));
    return nearest_integers(smaller(multiply_add(sum, steps, offset), FloatVec(kMost)));
  }

  /// Whether some number may be another integer.
  ORTM_REGISTERS bool in_doubt(IntLanes a, IntLanes b, IntLanes c, IntLanes d) const {
#if defined(__AVX512BW__)
    constexpr __mmask32 kAll = ~__mmask32{0};  // GCC 12 warns of the forms without a mask
    const __m512i least =
        _mm512_maskz_min_epu16(kAll, _mm512_maskz_min_epu16(kAll, __m512i(a), __m512i(b)),
                               _mm512_maskz_min_epu16(kAll, __m512i(c), __m512i(d)));
    return _mm512_testn_epi32_mask(least, _mm512_set1_epi32(certain_)) != 0;
#else
    const __m256i least = _mm256_min_epu16(_mm256_min_epu16(__m256i(a), __m256i(b)),
                                           _mm256_min_epu16(__m256i(c), __m256i(d)));
    return any_without(certain_, IntLanes(least));
#endif
  }

#if defined(__AVX512BW__)
  template <int kVectors>
  ORTM_REGISTERS bool in_doubt(const IntLanes (&of)[kVectors]) const {
    if constexpr (kVectors > 2) return in_doubt(of[0], of[1], of[2], of[kVectors - 1]);
    const __m512i least =
        _mm512_maskz_min_epu16(~__mmask32{0}, __m512i(of[0]), __m512i(of[kVectors - 1]));
    return _mm512_testn_epi32_mask(least, _mm512_set1_epi32(certain_)) != 0;
  }
  /// Writes the whole steps of up to four vectors.
  template <int kVectors>
  ORTM_REGISTERS void store(const IntLanes (&of)[kVectors], uint8_t* y) const {
    const IntLanes a = of[0], b = of[kVectors > 1 ? 1 : 0];
    constexpr int kThird = kVectors > 2 ? 2 : 0;
    const __m512i all = bytes_of(a, b, of[kThird], of[kVectors - 1]);
    if constexpr (kVectors == 4) return _mm512_storeu_si512(y, all);
    if constexpr (kVectors == 1)
      return _mm_storeu_si128(reinterpret_cast<__m128i*>(y),
                              __builtin_shufflevector(all, all, 0, 1));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y),
                        __builtin_shufflevector(all, all, 0, 1, 2, 3));
    if constexpr (kVectors == 3)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y + 32), __builtin_shufflevector(all, all, 4, 5));
  }
#endif

  /// Writes the whole steps of four vectors.
  ORTM_REGISTERS void store(IntLanes a, IntLanes b, IntLanes c, IntLanes d, uint8_t* y) const {
#if defined(__AVX512BW__)
    _mm512_storeu_si512(y, bytes_of(a, b, c, d));
#else
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), bytes_of(a, b, c, d));
#endif
  }
  /// Copies less than a cache line.
  static void copy_bytes(const uint8_t* from, int64_t count, uint8_t* to) {
    for (; count >= 16; count -= 16, from += 16, to += 16) std::memcpy(to, from, 16);
    if (count >= 8) {
      std::memcpy(to, from, 8);
      count -= 8, from += 8, to += 8;
    }
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }

  /// Writes columns [0, count) of `rows` rows of sums (with `added`), `stride` apart, to rows of y,
  /// `step` apart. doubt(row, column, count) writes those that are in doubt. Up to 15 sums and
  /// steps behind those of a row are read.
  template <class Doubt>
  void write(const int32_t* sums, int64_t stride, const int32_t* added, const float* steps,
             const float* offsets, int64_t rows, int64_t count, uint8_t* y, int64_t step,
             const Doubt& doubt) const {
    const SumSteps own = *this;  // which stores of bytes cannot change
    int64_t j = 0;
    for (; j + kWide <= count; j += kWide)
      own.write_columns<4>(sums + j, stride, added + j, steps + j, offsets + j, rows, kWide, y + j,
                           step, [&](int64_t row) { doubt(row, j, kWide); });
    const auto rest = [&]<int kVectors>() {
      own.write_columns<kVectors>(sums + j, stride, added + j, steps + j, offsets + j, rows,
                                  count - j, y + j, step,
                                  [&](int64_t row) { doubt(row, j, count - j); });
    };
    switch (ceil_div(count - j, kLanes)) {
      case 0: return;
      case 1: return rest.template operator()<1>();
      case 2: return rest.template operator()<2>();
      case 3: return rest.template operator()<3>();
      default: return rest.template operator()<4>();
    }
  }

 private:
  static constexpr int64_t kLanes = FloatVec::kCount, kWide = 4 * kLanes;

  template <int kVectors, class Doubt>
  void write_columns(const int32_t* sums, int64_t stride, const int32_t* added, const float* steps,
                     const float* offsets, int64_t rows, int64_t count, uint8_t* y, int64_t step,
                     const Doubt& doubt) const {
    IntLanes terms[kVectors];
    FloatVec factors[kVectors], shifts[kVectors];
    ORTM_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      terms[v] = load_integers(added + v * kLanes);
      factors[v] = FloatVec::load(steps + v * kLanes);
      shifts[v] = FloatVec::load(offsets + v * kLanes);
    }
    for (int64_t row = 0; row < rows; ++row, sums += stride, y += step) {
      IntLanes of[4];
      ORTM_UNROLL
      for (int v = 0; v < 4; ++v)
        of[v] = v < kVectors ? fixed(total_of(sums + v * kLanes, terms[v]), factors[v], shifts[v])
                             : of[0];
      if (in_doubt(of[0], of[1], of[2], of[3])) [[unlikely]] {
        doubt(row);
      } else if (kVectors == 4 && count == kWide) {
        store(of[0], of[1], of[2], of[3], y);
      } else {
        alignas(64) uint8_t bytes[kWide];
        store(of[0], of[1], of[2], of[3], bytes);
        copy_bytes(bytes, count, y);
      }
    }
  }

#if defined(__AVX512BW__)
  ORTM_REGISTERS __m512i bytes_of(IntLanes a, IntLanes b, IntLanes c, IntLanes d) const {
    alignas(64) static constexpr auto kOrder =
        []<int16_t... i>(std::integer_sequence<int16_t, i...>) {
      return std::array<int16_t, 32>{
          static_cast<int16_t>(2 * i + 1)...};  // of both, the high words
    }
    (std::make_integer_sequence<int16_t, 32>());
    const __m512i order = _mm512_load_si512(kOrder.data());
    const __m512i ab = _mm512_permutex2var_epi16(__m512i(a), order, __m512i(b)),
                  cd = _mm512_permutex2var_epi16(__m512i(c), order, __m512i(d));
    __m512i bytes = _mm512_maskz_packus_epi16(~__mmask64{0}, ab, cd);
    if (!is_plain_)
      bytes = _mm512_xor_si512(
          _mm512_maskz_max_epu8(~__mmask64{0}, bytes, _mm512_set1_epi8(static_cast<char>(least_))),
          _mm512_set1_epi8(static_cast<char>(flip_)));
    const __m512i turn = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return _mm512_maskz_permutexvar_epi64(0xff, turn, bytes);
  }
#else
  ORTM_REGISTERS __m256i bytes_of(IntLanes a, IntLanes b, IntLanes c, IntLanes d) const {
    const auto whole = [](IntLanes fixed) { return _mm256_srai_epi32(__m256i(fixed), 16); };
    __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(whole(a), whole(b)),
                                        _mm256_packs_epi32(whole(c), whole(d)));
    if (!is_plain_)
      bytes = _mm256_xor_si256(_mm256_max_epu8(bytes, _mm256_set1_epi8(static_cast<char>(least_))),
                               _mm256_set1_epi8(static_cast<char>(flip_)));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm256_permutevar8x32_epi32(bytes, order);
  }
#endif
#endif

#if defined(__AVX2__)
  static constexpr bool kExists = true;
#else
  static constexpr bool kExists = false;
#endif
  static constexpr float kUnit = 65536.0f;
  static constexpr int64_t kBlock = 16;

  static uint32_t magnitude_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }
  static int32_t shift(bool is_signed) { return is_signed ? 128 : 0; }

  float scale_ = 1.0f;
  int32_t zero_ = 0, certain_ = 0;
  uint8_t least_ = 0, flip_ = 0;
  bool is_plain_ = true, is_usual_ = false;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
