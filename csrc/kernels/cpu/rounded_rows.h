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
#if defined(__AVX512F__)
  const __m256 low(__builtin_shufflevector(x.v, x.v, 0, 1, 2, 3, 4, 5, 6, 7));
  const __m256 high(__builtin_shufflevector(x.v, x.v, 8, 9, 10, 11, 12, 13, 14, 15));
  const __m256 halves = _mm256_max_ps(low, high);
#else
  const __m256 halves(x.v);
#endif
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

/// to = x times a factor, rounded to integers of 8 bits that hold it.
inline void round_numbers(const float* x, int64_t count, float factor, int8_t* to) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i < count; i += FloatVec::kCount) {
    const int64_t some = std::min(FloatVec::kCount, count - i);
    const auto mask = static_cast<__mmask16>((1u << some) - 1);
    const FloatVec scaled = load_at_most(x + i, some) * FloatVec(factor);
    const __m128i bytes =
        _mm512_maskz_cvtepi32_epi8(0xffff, _mm512_maskz_cvtps_epi32(0xffff, __m512(scaled.v)));
    _mm_mask_storeu_epi8(to + i, mask, bytes);
  }
#else
  for (; i < count; ++i)
    to[i] = static_cast<int8_t>(static_cast<int32_t>(std::nearbyint(x[i] * factor)));
#endif
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
  if (rounds)
    round_numbers(x, count, 1.0f / scale, to);
  else
    std::fill_n(to, count, int8_t{0});
  return rounds ? scale : any;
}

/// y [rows, columns] = x [rows, inner] weights. Every element is computed alike whatever the
/// thread.
template <int kBits>
class RoundedRows {
 public:
  /// Rows that share what is read of the weights.
  static constexpr int64_t kMostRows = 4;
  /// Rows whose rounded numbers are kept.
  static constexpr int64_t kHeldRows = 12;
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

  /// Columns [begin, end) of rows [row, row + count), at most kHeldRows, which are rounded once.
  void run(int64_t begin, int64_t end, int64_t row, int64_t count) const {
    // A tile of columns stays in the second-level cache while all rows pass.
    constexpr int64_t kTileBytes = 256 << 10;
    const int64_t column_bytes = w_.count * (w_.size / kEach + int64_t{sizeof(float)});
    const int64_t tile =
        count <= kMostRows ? end - begin : std::max<int64_t>(1, kTileBytes / column_bytes);
    Row x[kHeldRows];
    for (int64_t first = 0; first < inner_; first += kPiece) {
      const int64_t inner = std::min(kPiece, inner_ - first);
      for (int64_t r = 0; r < count; ++r) round_row(x_ + (row + r) * inner_ + first, inner, x[r]);
      for (int64_t column = begin; column < end; column += tile)
        for (int64_t r = 0; r < count; r += kMostRows)
          with_few_rows(std::min(kMostRows, count - r), [&](auto rows) {
            run_rows<decltype(rows)::value>({column, std::min(end, column + tile)}, row + r,
                                            {first, inner}, x + r);
          });
    }
  }

 private:
  static constexpr int64_t kMostBlocks = kPiece / 16;
  static constexpr int kLanes = static_cast<int>(FloatVec::kCount);

  // A piece of a row: numbers in the order in which bytes are taken apart, the scale of each block
  // and of the block of each lane, and for each block its scale times the sum of its numbers.
  struct Row {
    alignas(64) int8_t numbers[kPiece];
    alignas(64) float scales[kMostBlocks], sums[kMostBlocks], lane_scales[kPiece / kLaneGroup];
  };
  // Of the blocks of a column, times those of each row where that is less work than to multiply in
  // each step.
  template <int kRows, int kSpread>
  struct Scales {
    static constexpr bool kByRow = kSpread <= 2 || kRows == 1 || kBits == 8;
    alignas(64) float numbers[kByRow ? kRows : 1][kMostBlocks + FloatVec::kCount];
  };

  static void fetch(const void* from) { __builtin_prefetch(from, 0, 2); }

  struct Range {
    int64_t begin, end;
  };
  struct Piece {
    int64_t first, inner;
  };

  template <int kRows>
  void run_rows(Range columns, int64_t row, Piece piece, const Row* __restrict x) const {
    switch (w_.size >= kGroup ? 1 : kGroup / w_.size) {
      case 1: return run_blocks<kRows, 1>(columns, row, piece, x);
      case 2: return run_blocks<kRows, 2>(columns, row, piece, x);
      case 4: return run_blocks<kRows, 4>(columns, row, piece, x);
      default: return run_blocks<kRows, kLanes>(columns, row, piece, x);
    }
  }

  // kSpread: how many blocks a vector of weights has, at most.
  template <int kRows, int kSpread>
  void run_blocks(Range columns, int64_t row, Piece piece, const Row* __restrict x) const {
    // So that few rows do not wait for their sums.
    constexpr int64_t kColumns = kRows <= 2 ? 4 : 2;
    int64_t column = columns.begin;
    for (; column + kColumns <= columns.end; column += kColumns)
      add_columns<kRows, kColumns, kSpread>(column, row, piece.first, piece.inner, x);
    for (; column < columns.end; ++column)
      add_columns<kRows, 1, kSpread>(column, row, piece.first, piece.inner, x);
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
  template <int kRows, int kColumns, int kSpread>
  void add_columns(int64_t column, int64_t row, int64_t first, int64_t inner,
                   const Row* __restrict x) const {
    const int64_t block = first >> size_bits_, blocks = ceil_div(inner, w_.size);
    FloatVec totals[kColumns][kRows];
    const uint8_t* bytes[kColumns];
    Scales<kRows, kSpread> scales[kColumns];
    for (int64_t c = 0; c < kColumns; ++c) {
      bytes[c] = w_.column<kBits>(column + c) + first / kEach;
      subtract_zeros<kRows, kSpread>(column + c, block, blocks, x, scales[c], totals[c]);
    }
    const int64_t whole = blocks * w_.size / kGroup * kGroup;
    constexpr bool kWhole = kSpread == 1 && kBits == 8;
    const int64_t step = kWhole ? w_.size : kGroup;
    for (int64_t k = 0; k < whole; k += step) {
      for (int64_t byte = k / kEach; byte < (k + step) / kEach; byte += kVectorBytes) {
        ORTM_UNROLL
        for (int64_t c = 0; c < kColumns; ++c) fetch(bytes[c] + byte + kAheadBytes);
      }
      add_step<kRows, kColumns, kSpread>(bytes, k / kEach, step, scales, k, x, totals);
    }
    if (whole < inner) {
      alignas(64) uint8_t padded[kColumns][kVectorBytes] = {};
      const auto count = static_cast<size_t>((blocks * w_.size - whole) / kEach);
      for (int64_t c = 0; c < kColumns; ++c) {
        std::memcpy(padded[c], bytes[c] + whole / kEach, count);
        bytes[c] = padded[c];
      }
      add_step<kRows, kColumns, kSpread>(bytes, 0, kGroup, scales, whole, x, totals);
    }
    for (int64_t c = 0; c < kColumns; ++c)
      for (int64_t r = 0; r < kRows; ++r) {
        float& y = y_[(row + r) * columns_ + column + c];
        y = sum_of_lanes(totals[c][r]) + (first > 0 ? y : 0.0f);
      }
  }

  // The scales from `from` on in the lanes of their blocks. What was stored as whole vectors is
  // read in parts that lie within one: others would wait for both.
  template <int kSpread>
  FloatVec in_lanes_of_blocks(const float* from) const {
    if constexpr (kSpread == 1) return FloatVec(*from);
    if constexpr (kSpread > 4) return __builtin_shuffle(FloatVec::load(from).v, block_of_lane_);
    __m128 few;
    if constexpr (kSpread == 2)
      few = _mm_castpd_ps(_mm_load_sd(reinterpret_cast<const double*>(from)));
    else
      few = _mm_loadu_ps(from);
#if defined(__AVX512F__)
    const FloatLanes wide(_mm512_zextps128_ps512(few));
#else
    const FloatLanes wide(_mm256_zextps128_ps256(few));
#endif
    return __builtin_shuffle(wide, block_of_lane_);
  }

  // Weights [k, k + count) of each column: a whole block, or a vector of bytes with blocks.
  template <int kRows, int kColumns, int kSpread>
  void add_step(const uint8_t* const* bytes, int64_t byte, int64_t count,
                const Scales<kRows, kSpread>* scales, int64_t k, const Row* __restrict x,
                FloatVec (&totals)[kColumns][kRows]) const {
    constexpr bool kWhole = kSpread == 1 && kBits == 8;
    IntLanes sums[kColumns][kRows] = {};
    int64_t at = k;
    do {
      ORTM_UNROLL
      for (int64_t c = 0; c < kColumns; ++c) {
        const IntLanes wide = load_bytes(bytes[c] + byte);
        ORTM_UNROLL
        for (int64_t r = 0; r < kRows; ++r) {
          ORTM_UNROLL
          for (int64_t part = 0; part < kEach; ++part)
            sums[c][r] =
                add_byte_products(sums[c][r], (wide >> static_cast<int>(part * kBits)) & kMask,
                                  load_bytes(x[r].numbers + at + part * kVectorBytes));
        }
      }
      byte += kVectorBytes;
      at += kGroup;
    } while (kWhole && at < k + count);
    const int64_t block = k >> size_bits_;
    ORTM_UNROLL
    for (int64_t c = 0; c < kColumns; ++c) {
      ORTM_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        constexpr bool kByRow = Scales<kRows, kSpread>::kByRow;
        FloatVec scale = in_lanes_of_blocks<kSpread>(scales[c].numbers[kByRow ? r : 0] + block);
        if constexpr (!kByRow) scale = scale * FloatVec::load(x[r].lane_scales + k / kLaneGroup);
        totals[c][r] = multiply_add(FloatVec(__builtin_convertvector(sums[c][r], FloatLanes)),
                                    scale, totals[c][r]);
      }
    }
  }

  // The scales of a column. totals = - sum of scale times zero point times sum of x, over blocks.
  template <int kRows, int kSpread>
  void subtract_zeros(int64_t column, int64_t block, int64_t blocks, const Row* __restrict x,
                      Scales<kRows, kSpread>& scales, FloatVec* totals) const {
    const BlockSteps<kBits> steps(w_, column);
    const float* next = w_.scales + column * w_.count + block + kAheadBytes * kEach / w_.size;
    for (int64_t b = 0; b < blocks; b += FloatVec::kCount) fetch(next + b);
    ORTM_UNROLL
    for (int64_t r = 0; r < kRows; ++r) totals[r] = FloatVec(0.0f);
    int64_t b = 0;
    do {  // there is a block
      const FloatVec scale = load_at_most(w_.scales + column * w_.count + block + b, blocks - b);
      const FloatVec zero = -(scale * steps.zeros(block + b));
      if constexpr (!Scales<kRows, kSpread>::kByRow) scale.store(scales.numbers[0] + b);
      ORTM_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        if constexpr (Scales<kRows, kSpread>::kByRow)
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
