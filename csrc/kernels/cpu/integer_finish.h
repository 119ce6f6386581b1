// What products of integers do with their sums: scale them, add a bias, bend, and quantize again.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/sum_steps.h"
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
  return __builtin_convertvector(total_of(sums, added), FloatLanes);
}

/// Columns of sums, whose rows are `stride` apart, as real numbers: (sum + added) * factor + bias.
template <bool kBiased>
struct ScaledColumns {
  const int32_t* sums;
  int64_t stride;
  IntLanes added;
  FloatVec factor, bias;

  FloatVec operator()(int64_t row) const {
    const FloatVec scaled = floats_of(sums + row * stride, added) * factor;
    if constexpr (kBiased) return scaled + bias;
    return scaled;  // adding 0 would change -0
  }
};

/// Results of real numbers, as they are or quantized: clamp(round(y / scale) + zero).
class RealResults {
 public:
  RealResults(const KernelArgs& args, int scale_place, int zero_place)
      : to_(args.out[0].data), dtype_(args.out[0].dtype), relu_(is_relu(args)) {
    const Each scale(args, scale_place), zero(args, zero_place);
    if (!scale) return;
    const int32_t point = zero.point(0), least = dtype_ == DType::Int8 ? -128 : 0;
    // The bytes of positive numbers are not below that of zero.
    const int32_t lowest = relu_ ? point : least;
    quantizer_ = Quantizer(scale.number(0), point, lowest, least + 255);
    steps_ = SumSteps(scale.number(0), point, lowest, dtype_ == DType::Int8);
  }

  /// What makes bytes of sums, if the results are bytes.
  const SumSteps& steps() const { return steps_; }
  uint8_t* bytes() const { return static_cast<uint8_t*>(to_); }

  /// Writes `count` results from element `at` on. real(j) is a FloatVec of the numbers from j on;
  /// it may be asked for up to 15 behind `count`.
  template <class Real>
  void write(int64_t at, int64_t count, const Real& real) const {
    // Numbers rather than what computes them, of which each vector would have a copy in memory.
    write_rows(at, 1, 0, count, [&](int64_t j) { return [x = real(j)](int64_t) { return x; }; });
  }

  /// The same for rows whose results begin `step` elements apart. columns(j)(row) are the numbers
  /// of a row from j on: what columns share is loaded once for all rows.
  template <class Columns>
  void write_rows(int64_t at, int64_t rows, int64_t step, int64_t count,
                  const Columns& columns) const {
    // A copy, which stores of bytes cannot change.
    const RealResults own = *this;
    if (dtype_ == DType::UInt8)
      own.quantize(rows, step, count, columns, static_cast<uint8_t*>(own.to_) + at);
    else if (dtype_ == DType::Int8)
      own.quantize(rows, step, count, columns, static_cast<int8_t*>(own.to_) + at);
    else
      own.store(rows, step, count, columns, static_cast<float*>(own.to_) + at);
  }

 private:
  static constexpr int64_t kLanes = FloatVec::kCount;
  static constexpr int64_t kBlock = 16, kWide = 4 * kLanes;

  static bool is_relu(const KernelArgs& args) {
    return args.facts.node().attrs.integer("relu", 0) != 0;
  }

  template <class Columns>
  void store(int64_t rows, int64_t step, int64_t count, const Columns& columns, float* y) const {
    const FloatVec zero(0.0f);
    for (int64_t j = 0; j < count; j += kLanes) {
      const auto real = columns(j);
      float* to = y + j;
      for (int64_t row = 0; row < rows; ++row, to += step) {
        FloatVec x = real(row);
        if (relu_) x = larger(x, zero);
        j + kLanes <= count ? x.store(to) : x.store(to, count - j);
      }
    }
  }

  template <class Columns, class Q>
  void quantize(int64_t rows, int64_t step, int64_t count, const Columns& columns, Q* y) const {
    int64_t j = 0;
#if defined(__AVX2__)
    for (; j + kWide <= count && quantizer_.is_usual(); j += kWide)
      quantize_wide(rows, step, columns, j, y + j);
#endif
    for (; j < count; j += kBlock) {
      const auto parts = parts_of<kBlock / kLanes>(columns, j);
      Q* to = y + j;
      for (int64_t row = 0; row < rows; ++row, to += step)
        quantize_block(parts, row, count - j, to);
    }
  }

  /// columns(j) of `kParts` vectors in turn.
  template <size_t kParts, class Columns>
  static auto parts_of(const Columns& columns, int64_t j) {
    return [&]<size_t... kPart>(std::index_sequence<kPart...>) {
      return std::array{columns(j + static_cast<int64_t>(kPart) * kLanes)...};
    }
    (std::make_index_sequence<kParts>());
  }

  /// Up to 16 results.
  template <class Parts, class Q>
  void quantize_block(const Parts& parts, int64_t row, int64_t count, Q* y) const {
    Q block[kBlock];
#if defined(__AVX2__)
    __m128i bytes = narrowed<Q>(quantizer_(parts[0](row)));
    if constexpr (kLanes == 8)
      bytes = _mm_unpacklo_epi64(bytes, narrowed<Q>(quantizer_(parts[1](row))));
    if (count >= kBlock) return _mm_storeu_si128(reinterpret_cast<__m128i*>(y), bytes);
    if (count == kBlock / 2) return _mm_storel_epi64(reinterpret_cast<__m128i*>(y), bytes);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block), bytes);
#else
    for (size_t v = 0; v < parts.size(); ++v) {
      const IntLanes lanes = quantizer_(parts[v](row));
      for (int64_t i = 0; i < kLanes; ++i)
        block[static_cast<int64_t>(v) * kLanes + i] = static_cast<Q>(lanes[i]);
    }
#endif
    std::copy_n(block, std::min(count, kBlock), y);
  }

#if defined(__AVX2__)
  /// kWide results of each row.
  template <class Columns, class Q>
  void quantize_wide(int64_t rows, int64_t step, const Columns& columns, int64_t j, Q* y) const {
    const auto parts = parts_of<4>(columns, j);
    for (int64_t row = 0; row < rows; ++row, y += step) {
      const IntLanes a = quantizer_.fixed(parts[0](row)), b = quantizer_.fixed(parts[1](row)),
                     c = quantizer_.fixed(parts[2](row)), d = quantizer_.fixed(parts[3](row));
      if (Quantizer::in_doubt(a, b, c, d)) [[unlikely]]
        store_bytes(quantizer_(parts[0](row)), quantizer_(parts[1](row)), quantizer_(parts[2](row)),
                    quantizer_(parts[3](row)), std::numeric_limits<Q>::lowest(), y);
      else
        store_bytes(Quantizer::whole_of(a), Quantizer::whole_of(b), Quantizer::whole_of(c),
                    Quantizer::whole_of(d), std::numeric_limits<Q>::lowest(), y);
    }
  }
#endif

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
  Quantizer quantizer_;
  SumSteps steps_;
};

/// Rows of sums, `stride` apart, and what makes real numbers of each column; `biases` may be null.
/// `how`, with steps and offsets, makes bytes of them at once, or is null.
struct SumScales {
  const int32_t* sums;
  int64_t stride;
  const int32_t* added;
  const float *factors, *biases;
  const SumSteps* how = nullptr;
  const float *steps = nullptr, *offsets = nullptr;

  /// Writes `rows` rows of `count` results from element `at` on, `step` apart. Up to 15 sums and
  /// scales behind those of a row are read.
  void write(const RealResults& results, int64_t at, int64_t rows, int64_t step,
             int64_t count) const {
#if defined(__AVX2__)
    if (how)
      return how->write(
          sums, stride, added, steps, offsets, rows, count, results.bytes() + at, step,
          [&](int64_t row, int64_t column, int64_t some) {
            from(row, column).write_reals(results, at + row * step + column, 1, step, some);
          });
#endif
    write_reals(results, at, rows, step, count);
  }

 private:
  SumScales from(int64_t row, int64_t column) const {
    return {sums + row * stride + column, stride, added + column, factors + column,
            biases ? biases + column : nullptr};
  }

  void write_reals(const RealResults& results, int64_t at, int64_t rows, int64_t step,
                   int64_t count) const {
    const SumScales own = *this;
    if (biases)
      results.write_rows(at, rows, step, count, [=](int64_t j) { return own.columns<true>(j); });
    else
      results.write_rows(at, rows, step, count, [=](int64_t j) { return own.columns<false>(j); });
  }

  template <bool kBiased>
  ScaledColumns<kBiased> columns(int64_t j) const {
    ScaledColumns<kBiased> columns{
        sums + j, stride, load_integers(added + j), FloatVec::load(factors + j), {}};
    if constexpr (kBiased) columns.bias = FloatVec::load(biases + j);
    return columns;
  }
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
