// The product of block_weights.h with x rounded to 8 bits as well, each block of a row by its
// largest magnitude: products are integers then, and a vector of them takes one instruction. It is
// what MatMulNBits permits with an accuracy level of 4.
#pragma once

#include <bit>

#include "kernels/cpu/block_weights.h"
#include "kernels/cpu/lane_loads.h"

namespace ortmodule {
inline namespace ORTM_ISA {

#if defined(__AVX2__)

/// In each lane, the sum of four unsigned numbers below 256 times signed ones, exactly.
#if defined(__AVX512VNNI__)
inline constexpr int kMostFactorBits = 8;
inline IntLanes add_byte_products(IntLanes sum, IntLanes bytes, IntLanes numbers) {
  return IntLanes(_mm512_dpbusd_epi32(__m512i(sum), __m512i(bytes), __m512i(numbers)));
}
#elif defined(__AVX512BW__)
inline constexpr int kMostFactorBits = 4;  // two products fit 16 bits
inline IntLanes add_byte_products(IntLanes sum, IntLanes bytes, IntLanes numbers) {
  const __m512i pairs = _mm512_maddubs_epi16(__m512i(bytes), __m512i(numbers));
  return sum + IntLanes(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
#else
inline constexpr int kMostFactorBits = 4;
inline IntLanes add_byte_products(IntLanes sum, IntLanes bytes, IntLanes numbers) {
  const __m256i pairs = _mm256_maddubs_epi16(__m256i(bytes), __m256i(numbers));
  return sum + IntLanes(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif

inline IntLanes load_bytes(const void* from) {
#if defined(__AVX512F__)
  return IntLanes(_mm512_loadu_si512(from));
#else
  return IntLanes(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
#endif
}

inline float sum_of_lanes(FloatVec x) {
#if defined(__AVX512F__)
  const __m256 halves(__builtin_shufflevector(x.v, x.v, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(x.v, x.v, 8, 9, 10, 11, 12, 13, 14, 15));
#else
  const __m256 halves(x.v);
#endif
  __m128 sums = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
  sums = _mm_add_ps(sums, _mm_movehl_ps(sums, sums));
  return _mm_cvtss_f32(_mm_add_ss(sums, _mm_movehdup_ps(sums)));
}

inline float most_of_lanes(FloatVec x) {
  float lanes[FloatVec::kCount];
  x.store(lanes);
  return *std::max_element(lanes, lanes + FloatVec::kCount);
}

/// Rounds `count` numbers to 8 bits by the largest magnitude of them. The scale, which is NaN if a
/// number is not finite.
inline float round_block(const float* x, int64_t count, int8_t* to) {
  FloatVec most(0.0f), probe(0.0f);
  for (int64_t i = 0; i < count; i += FloatVec::kCount) {
    const FloatVec number = load_at_most(x + i, count - i);
    most = larger(most, magnitude_of(number));
    probe = multiply_add(number, FloatVec(0.0f), probe);
  }
  const float scale = most_of_lanes(most) / 127.0f, any = sum_of_lanes(probe);
  // The reciprocal of a denormal number may overflow; such numbers are as good as 0.
  const bool rounds = any == 0.0f && scale >= std::numeric_limits<float>::min();
  const float inverse = rounds ? 1.0f / scale : 0.0f;
  for (int64_t i = 0; i < count; ++i)
    to[i] = static_cast<int8_t>(rounds ? static_cast<int32_t>(std::nearbyint(x[i] * inverse)) : 0);
  return rounds ? scale : any;
}

/// y [rows, columns] = x [rows, inner] weights. Every element is computed alike whatever the
/// thread.
template <int kBits>
class RoundedRows {
 public:
  /// Rows that share what is read of the weights.
  static constexpr int64_t kMostRows = 4;
  /// Weights of a vector of bytes, and of one of its lanes.
  static constexpr int64_t kEach = 8 / kBits, kGroup = kVectorBytes * kEach, kLaneGroup = 4 * kEach;
  /// Of the inner dimension; whole blocks, which are powers of two.
  static constexpr int64_t kPiece = 4096;
  /// Bytes of weights that are on their way from memory: the processor alone does not look beyond a
  /// page. They go to the second-level cache, which waits for more lines at a time than the first.
  static constexpr int64_t kAheadBytes = 8192;

  RoundedRows(const BlockWeights& w, const float* x, int64_t inner, float* y, int64_t columns)
      : w_(w),
        x_(x),
        inner_(inner),
        y_(y),
        columns_(columns),
        size_bits_(std::countr_zero(static_cast<uint64_t>(w.size))) {
    for (int lane = 0; lane < FloatVec::kCount; ++lane)
      block_of_lane_[lane] = static_cast<int32_t>(lane * kLaneGroup / w.size);
  }

  /// Columns [begin, end) of rows [row, row + count).
  void run(int64_t begin, int64_t end, int64_t row, int64_t count) const {
    with_few_rows(count, [&](auto rows) { run_rows<decltype(rows)::value>(begin, end, row); });
  }

 private:
  static constexpr int64_t kMostBlocks = kPiece / 16;

  // A piece of a row: numbers in the order in which bytes are taken apart, the scale of each block
  // and of the block of each lane, and for each block its scale times the sum of its numbers.
  struct Row {
    alignas(64) int8_t numbers[kPiece];
    alignas(64) float scales[kMostBlocks], sums[kMostBlocks], lane_scales[kPiece / kLaneGroup];
  };
  // Of the blocks of a column, times those of each row where a vector of weights has one scale
  // (`kWide`) or there is one row.
  template <int kRows, bool kWide>
  struct Scales {
    static constexpr bool kByRow = kWide || kRows == 1;
    alignas(64) float numbers[kByRow ? kRows : 1][kMostBlocks + FloatVec::kCount];
  };

  static void fetch(const void* from) { __builtin_prefetch(from, 0, 2); }

  template <int kRows>
  void run_rows(int64_t begin, int64_t end, int64_t row) const {
    w_.size >= kGroup ? run_blocks<kRows, true>(begin, end, row)
                      : run_blocks<kRows, false>(begin, end, row);
  }

  template <int kRows, bool kWide>
  void run_blocks(int64_t begin, int64_t end, int64_t row) const {
    Row x[kRows];
    for (int64_t first = 0; first < inner_; first += kPiece) {
      const int64_t inner = std::min(kPiece, inner_ - first);
      for (int64_t r = 0; r < kRows; ++r) round_row(x_ + (row + r) * inner_ + first, inner, x[r]);
      // So that few rows do not wait for their sums.
      constexpr int64_t kColumns = kRows == 1 ? 4 : 2;
      int64_t column = begin;
      for (; column + kColumns <= end; column += kColumns)
        add_columns<kRows, kColumns, kWide>(column, row, first, inner, x);
      for (; column < end; ++column) add_columns<kRows, 1, kWide>(column, row, first, inner, x);
    }
  }

  void round_row(const float* x, int64_t inner, Row& row) const {
    alignas(64) int8_t rounded[kPiece + kGroup];
    int64_t block = 0;
    for (int64_t begin = 0; begin < inner; begin += w_.size, ++block) {
      const int64_t end = std::min(inner, begin + w_.size);
      const float scale = round_block(x + begin, end - begin, rounded + begin);
      int32_t sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += rounded[i];
      row.scales[block] = scale;
      row.sums[block] = scale * static_cast<float>(sum);
      std::fill(row.lane_scales + begin / kLaneGroup, row.lane_scales + ceil_div(end, kLaneGroup),
                scale);
    }
    const int64_t padded = ceil_div(block * w_.size, kGroup) * kGroup;
    std::fill(rounded + inner, rounded + padded, int8_t{0});
    std::fill(row.lane_scales + ceil_div(inner, kLaneGroup), row.lane_scales + padded / kLaneGroup,
              0.0f);
    for (; block % FloatVec::kCount != 0; ++block) row.scales[block] = row.sums[block] = 0.0f;
    for (int64_t k = 0; k < padded; k += kGroup)
      for (int64_t part = 0; part < kEach; ++part)
        for (int64_t i = 0; i < kVectorBytes; ++i)
          row.numbers[k + part * kVectorBytes + i] = rounded[k + i * kEach + part];
  }

  // Adds the products of weights [first, first + inner) of the columns to y.
  template <int kRows, int kColumns, bool kWide>
  void add_columns(int64_t column, int64_t row, int64_t first, int64_t inner, const Row* x) const {
    const int64_t block = first >> size_bits_, blocks = ceil_div(inner, w_.size);
    FloatVec totals[kColumns][kRows];
    const uint8_t* bytes[kColumns];
    Scales<kRows, kWide> scales[kColumns];
    for (int64_t c = 0; c < kColumns; ++c) {
      bytes[c] = w_.column<kBits>(column + c) + first / kEach;
      subtract_zeros<kRows, kWide>(column + c, block, blocks, x, scales[c], totals[c]);
    }
    const int64_t whole = blocks * w_.size / kGroup * kGroup;
    for (int64_t k = 0; k < whole; k += kGroup) {
      ORTM_UNROLL
      for (int64_t c = 0; c < kColumns; ++c) fetch(bytes[c] + k / kEach + kAheadBytes);
      add_group<kRows, kColumns, kWide>(bytes, k / kEach, scales, k, x, totals);
    }
    if (whole < inner) {
      alignas(64) uint8_t padded[kColumns][kVectorBytes] = {};
      const auto count = static_cast<size_t>((blocks * w_.size - whole) / kEach);
      for (int64_t c = 0; c < kColumns; ++c) {
        std::memcpy(padded[c], bytes[c] + whole / kEach, count);
        bytes[c] = padded[c];
      }
      add_group<kRows, kColumns, kWide>(bytes, 0, scales, whole, x, totals);
    }
    for (int64_t c = 0; c < kColumns; ++c)
      for (int64_t r = 0; r < kRows; ++r) {
        float& y = y_[(row + r) * columns_ + column + c];
        y = sum_of_lanes(totals[c][r]) + (first > 0 ? y : 0.0f);
      }
  }

  // A vector of bytes of each column, of weights from `k` on.
  template <int kRows, int kColumns, bool kWide>
  void add_group(const uint8_t* const* bytes, int64_t byte, const Scales<kRows, kWide>* scales,
                 int64_t k, const Row* x, FloatVec (&totals)[kColumns][kRows]) const {
    const int64_t block = k >> size_bits_;
    ORTM_UNROLL
    for (int64_t c = 0; c < kColumns; ++c) {
      const IntLanes wide = load_bytes(bytes[c] + byte);
      ORTM_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        IntLanes sum{};
        ORTM_UNROLL
        for (int64_t part = 0; part < kEach; ++part)
          sum = add_byte_products(sum, (wide >> static_cast<int>(part * kBits)) & kMask,
                                  load_bytes(x[r].numbers + k + part * kVectorBytes));
        FloatVec scale;
        if constexpr (kWide) {
          scale = FloatVec(scales[c].numbers[r][block]);
        } else {
          scale = __builtin_shuffle(FloatVec::load(scales[c].numbers[0] + block).v, block_of_lane_);
          if constexpr (kRows > 1)
            scale = scale * FloatVec::load(x[r].lane_scales + k / kLaneGroup);
        }
        totals[c][r] =
            multiply_add(FloatVec(__builtin_convertvector(sum, FloatLanes)), scale, totals[c][r]);
      }
    }
  }

  // The scales of a column. totals = - sum of scale times zero point times sum of x, over blocks.
  template <int kRows, bool kWide>
  void subtract_zeros(int64_t column, int64_t block, int64_t blocks, const Row* x,
                      Scales<kRows, kWide>& scales, FloatVec* totals) const {
    const BlockSteps<kBits> steps(w_, column);
    const float* next = w_.scales + column * w_.count + block + kAheadBytes * kEach / w_.size;
    for (int64_t b = 0; b < blocks; b += FloatVec::kCount) fetch(next + b);
    ORTM_UNROLL
    for (int64_t r = 0; r < kRows; ++r) totals[r] = FloatVec(0.0f);
    int64_t b = 0;
    do {  // there is a block
      const FloatVec scale = load_at_most(w_.scales + column * w_.count + block + b, blocks - b);
      const FloatVec zero = -(scale * steps.zeros(block + b));
      if constexpr (!Scales<kRows, kWide>::kByRow) scale.store(scales.numbers[0] + b);
      ORTM_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        if constexpr (Scales<kRows, kWide>::kByRow)
          (scale * FloatVec::load(x[r].scales + b)).store(scales.numbers[r] + b);
        totals[r] = multiply_add(zero, FloatVec::load(x[r].sums + b), totals[r]);
      }
      b += FloatVec::kCount;
    } while (b < blocks);
  }

  // Of each byte of a lane the lowest bits.
  static constexpr auto kMask = static_cast<int32_t>(((1u << kBits) - 1) * 0x01010101u);

  const BlockWeights& w_;
  const float* x_;
  int64_t inner_;
  float* y_;
  int64_t columns_;
  int size_bits_;
  IntLanes block_of_lane_;
};

#endif

}  // namespace ORTM_ISA
}  // namespace ortmodule
