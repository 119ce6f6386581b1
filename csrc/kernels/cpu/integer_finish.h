// What products of integers do with their sums: scale them, add a bias, bend, and quantize again.
#pragma once

#include <bit>
#include <cstring>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/float_vec.h"
#include "kernels/kernel.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// One operand that is a number for all, or for each row or column; of no operand, nothing.
struct Each {
  const void* data = nullptr;
  DType dtype = DType::Undefined;
  int64_t stride = 0;

  Each() = default;
  Each(const KernelArgs& args, int place) {
    const auto at = static_cast<size_t>(place);
    if (place < 0 || at >= args.in.size() || !args.in[at].data) return;
    const TensorView& view = args.in[at];
    data = view.data;
    dtype = view.dtype;
    stride = view.element_count() == 1 ? 0 : view.strides[0];
  }
  explicit operator bool() const { return data != nullptr; }
  /// As an integer; 0 if there is none.
  int32_t point(int64_t i) const {
    if (!data) return 0;
    return dtype == DType::Int8 ? static_cast<const int8_t*>(data)[i * stride]
                                : static_cast<const uint8_t*>(data)[i * stride];
  }
  float number(int64_t i) const { return static_cast<const float*>(data)[i * stride]; }
  bool is_integer() const { return dtype == DType::Int32; }
  uint32_t integer(int64_t i) const { return static_cast<const uint32_t*>(data)[i * stride]; }
};

/// Integers as floats, of which a product has made sums.
inline FloatVec floats_of(const int32_t* sums, IntLanes added) {
  IntLanes lanes;
  std::memcpy(&lanes, sums, sizeof(lanes));
  return __builtin_convertvector(IntLanes(UIntLanes(lanes) + UIntLanes(added)), FloatLanes);
}

/// Results of real numbers, as they are or quantized: clamp(round(y / scale) + zero).
class RealResults {
 public:
  RealResults(const KernelArgs& args, int scale_place, int zero_place)
      : to_(args.out[0].data), dtype_(args.out[0].dtype), relu_(is_relu(args)) {
    const Each scale(args, scale_place), zero(args, zero_place);
    if (!scale) return;
    scale_ = scale.number(0);
    zero_ = static_cast<float>(zero.point(0));
#if defined(__AVX2__)
    // Of what is far from the least and largest numbers the reciprocal is exact enough.
    divides_ = !(scale_ > 0x1p-100f && scale_ < 0x1p100f);
    reciprocal_ = divides_ ? 0.0f : 1.0f / scale_;
    rounds_ = zero.point(0) * kOne + kMiddle - kFixedBits;
#endif
  }

  /// Writes `count` results from element `at` on. real(j) is a FloatVec of the numbers from j on;
  /// it may be asked for up to 15 behind `count`.
  template <class Real>
  void write(int64_t at, int64_t count, const Real& real) const {
    write_rows(at, 1, 0, count, [&](int64_t) { return real; });
  }

  /// The same for rows whose results begin `step` elements apart, real_of(row)(j).
  template <class RealOf>
  void write_rows(int64_t at, int64_t rows, int64_t step, int64_t count,
                  const RealOf& real_of) const {
    if (!relu_) return write_bent(at, rows, step, count, real_of);
    write_bent(at, rows, step, count, [&](int64_t row) {
      return [real = real_of(row)](int64_t j) {
        const FloatVec x = real(j), zero(0.0f);
        return select(x > zero, x, zero);
      };
    });
  }

 private:
  static constexpr int64_t kLanes = FloatVec::kCount;

  static bool is_relu(const KernelArgs& args) {
    return args.facts.node().attrs.integer("relu", 0) != 0;
  }

  template <class RealOf>
  void write_bent(int64_t at, int64_t rows, int64_t step, int64_t count,
                  const RealOf& real_of) const {
    // A copy, which stores of bytes cannot change.
    const RealResults own = *this;
    for (int64_t row = 0; row < rows; ++row, at += step) {
      const auto real = real_of(row);
      if (dtype_ == DType::UInt8)
        own.quantize(real, count, static_cast<uint8_t*>(own.to_) + at);
      else if (dtype_ == DType::Int8)
        own.quantize(real, count, static_cast<int8_t*>(own.to_) + at);
      else
        store(real, count, static_cast<float*>(own.to_) + at);
    }
  }

  template <class Real>
  static void store(const Real& real, int64_t count, float* to) {
    int64_t j = 0;
    for (; j + kLanes <= count; j += kLanes) real(j).store(to + j);
    if (j < count) real(j).store(to + j, count - j);
  }

  template <class Real, class Q>
  void quantize(const Real& real, int64_t count, Q* y) const {
    constexpr int64_t kBlock = 16;
    int64_t j = 0;
    for (; j + kBlock <= count; j += kBlock) quantize_block(real, j, y + j);
    if (j == count) return;
    Q block[kBlock];
    quantize_block(real, j, block);
    if (count - j == kBlock / 2)
      std::memcpy(y + j, block, kBlock / 2);
    else
      std::copy_n(block, count - j, y + j);
  }

  /// 16 results.
  template <class Real, class Q>
  void quantize_block(const Real& real, int64_t j, Q* y) const {
    constexpr float kLeast = std::is_signed_v<Q> ? -128.0f : 0.0f, kMost = kLeast + 255.0f;
#if defined(__AVX2__)
    __m128i block = quantized(real(j), kLeast, kMost);
    if constexpr (kLanes == 8)
      block = _mm_unpacklo_epi64(block, quantized(real(j + 8), kLeast, kMost));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y), block);
#else
    for (int64_t v = 0; v < 16; v += kLanes) {
      const FloatVec given = real(j + v);
      for (int64_t i = 0; i < kLanes; ++i) {
        float place = __builtin_rintf(given.v[i] / scale_) + zero_;
        place = place > kLeast ? place : kLeast;
        place = place < kMost ? place : kMost;
        y[v + i] = static_cast<Q>(static_cast<int32_t>(place));
      }
    }
#endif
  }

#if defined(__AVX2__)
  // In fixed point: what is added to a number up to 1024 leaves the last 12 bits for its fraction.
  // The product with the reciprocal is as good as the quotient where it does not lie in the middle
  // of two integers: both differ by 3 x 512 x 2^-24 at most. Vectors with such numbers are divided.
  static constexpr float kFixed = 3072.0f;
  static constexpr int32_t kFixedBits = std::bit_cast<int32_t>(kFixed), kOne = 1 << 12;
  static constexpr int32_t kFraction = kOne - 1, kMiddle = kOne / 2;
#endif
#if defined(__AVX512BW__)
  __m128i quantized(FloatVec real, float least, float most) const {
    constexpr __mmask16 kAll = 0xffff;  // GCC 12 warns of the forms without a mask
    const auto within = [&](__m512 place, float low, float high) {
      return _mm512_maskz_min_ps(kAll, _mm512_maskz_max_ps(kAll, place, _mm512_set1_ps(low)),
                                 _mm512_set1_ps(high));
    };
    const __m512 place = _mm512_mul_ps(__m512(real.v), _mm512_set1_ps(reciprocal_));
    const __m512i fixed = _mm512_castps_si512(
        _mm512_add_ps(within(place, least - zero_, most - zero_), _mm512_set1_ps(kFixed)));
    const __m512i fraction = _mm512_and_si512(fixed, _mm512_set1_epi32(kFraction));
    if (_mm512_cmpeq_epi32_mask(fraction, _mm512_set1_epi32(kMiddle)) != 0 || divides_)
        [[unlikely]] {
      constexpr int kRint = _MM_FROUND_CUR_DIRECTION | _MM_FROUND_NO_EXC;
      const __m512 whole = _mm512_maskz_roundscale_ps(
          kAll, _mm512_div_ps(__m512(real.v), _mm512_set1_ps(scale_)), kRint);
      const __m512 sum = within(_mm512_add_ps(whole, _mm512_set1_ps(zero_)), least, most);
      return _mm512_maskz_cvtepi32_epi8(kAll, _mm512_maskz_cvttps_epi32(kAll, sum));
    }
    const __m512i sum = _mm512_add_epi32(fixed, _mm512_set1_epi32(rounds_));
    return _mm512_maskz_cvtepi32_epi8(kAll, _mm512_maskz_srli_epi32(kAll, sum, 12));
  }
#elif defined(__AVX2__)
  __m128i quantized(FloatVec real, float least, float most) const {
    const auto within = [&](__m256 place, float low, float high) {
      return _mm256_min_ps(_mm256_max_ps(place, _mm256_set1_ps(low)), _mm256_set1_ps(high));
    };
    const __m256 place = _mm256_mul_ps(__m256(real.v), _mm256_set1_ps(reciprocal_));
    const __m256i fixed = _mm256_castps_si256(
        _mm256_add_ps(within(place, least - zero_, most - zero_), _mm256_set1_ps(kFixed)));
    const __m256i fraction = _mm256_and_si256(fixed, _mm256_set1_epi32(kFraction));
    const __m256i middle = _mm256_cmpeq_epi32(fraction, _mm256_set1_epi32(kMiddle));
    __m256i words = _mm256_srai_epi32(_mm256_add_epi32(fixed, _mm256_set1_epi32(rounds_)), 12);
    if (_mm256_movemask_epi8(middle) != 0 || divides_) [[unlikely]] {
      constexpr int kRint = _MM_FROUND_CUR_DIRECTION | _MM_FROUND_NO_EXC;
      const __m256 whole =
          _mm256_round_ps(_mm256_div_ps(__m256(real.v), _mm256_set1_ps(scale_)), kRint);
      words = _mm256_cvttps_epi32(within(_mm256_add_ps(whole, _mm256_set1_ps(zero_)), least, most));
    }
    const __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    const __m128i pairs = _mm_packs_epi32(low, high);
    return least < 0.0f ? _mm_packs_epi16(pairs, pairs) : _mm_packus_epi16(pairs, pairs);
  }
#endif

  void* to_;
  DType dtype_;
  bool relu_;
  float scale_ = 1.0f, zero_ = 0.0f;
#if defined(__AVX2__)
  float reciprocal_ = 1.0f;
  int32_t rounds_ = 0;  // what makes places of numbers in fixed point
  bool divides_ = false;
#endif
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
