// What products of integers do with their sums: scale them, add a bias, bend, and quantize again.
#pragma once

#include <cstring>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/quantizer.h"
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
    zero_ = zero.point(0);
    const int32_t least = dtype_ == DType::Int8 ? -128 : 0;
    quantizer_ = Quantizer(scale.number(0), zero_, least, least + 255);
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
    const auto bytes = [&](int64_t from) { return quantizer_.steps(real(from)) + zero_; };
#if defined(__AVX2__)
    __m128i block = narrowed<Q>(bytes(j));
    if constexpr (kLanes == 8) block = _mm_unpacklo_epi64(block, narrowed<Q>(bytes(j + 8)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y), block);
#else
    for (int64_t v = 0; v < 16; v += kLanes) {
      const IntLanes lanes = bytes(j + v);
      for (int64_t i = 0; i < kLanes; ++i) y[v + i] = static_cast<Q>(lanes[i]);
    }
#endif
  }

#if defined(__AVX512BW__)
  template <class Q>
  static __m128i narrowed(IntLanes bytes) {
    return _mm512_maskz_cvtepi32_epi8(0xffff,
                                      __m512i(bytes));  // GCC 12 warns of that without a mask
  }
#elif defined(__AVX2__)
  template <class Q>
  static __m128i narrowed(IntLanes bytes) {
    const auto words = __m256i(bytes);
    const __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    const __m128i pairs = _mm_packs_epi32(low, high);
    return std::is_signed_v<Q> ? _mm_packs_epi16(pairs, pairs) : _mm_packus_epi16(pairs, pairs);
  }
#endif

  void* to_;
  DType dtype_;
  bool relu_;
  int32_t zero_ = 0;
  Quantizer quantizer_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
