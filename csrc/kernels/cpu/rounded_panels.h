// The product of rounded_rows.h for many rows: weights of neighbouring columns lie side by side, so
// that a lane sums a whole block of its column before the sum is scaled.
#pragma once

#include <type_traits>

#include "kernels/cpu/rounded_rows.h"

namespace ortmodule {
inline namespace ORTM_ISA {

#if defined(__AVX2__)

/// Rows of x [rows, inner], each block rounded to 8 bits, in memory of the caller.
class RoundedInput {
 public:
  RoundedInput(int64_t rows, int64_t inner, int64_t block_size, void* memory)
      : inner_(inner), size_(block_size), blocks_(ceil_div(inner, block_size)) {
    scales_ = static_cast<float*>(memory);
    sums_ = scales_ + rows * blocks_;
    numbers_ = reinterpret_cast<int8_t*>(sums_ + rows * blocks_);
  }
  static size_t bytes(int64_t rows, int64_t inner, int64_t block_size) {
    constexpr int64_t kEach = 2 * sizeof(float);
    return static_cast<size_t>(rows * ceil_div(inner, block_size) * (kEach + block_size));
  }

  void round(int64_t row, const float* x) const {
    int8_t* to = numbers_ + row * blocks_ * size_;
    for (int64_t block = 0; block < blocks_; ++block, to += size_) {
      const int64_t count = std::min(size_, inner_ - block * size_);
      const float scale = round_block(x + block * size_, count, to);
      std::fill(to + count, to + size_, int8_t{0});
      int32_t sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += to[i];
      scales_[row * blocks_ + block] = scale;
      sums_[row * blocks_ + block] = scale * static_cast<float>(sum);
    }
  }

  int64_t blocks() const { return blocks_; }
  int64_t block_size() const { return size_; }
  const int8_t* numbers(int64_t row, int64_t block) const {
    return numbers_ + (row * blocks_ + block) * size_;
  }
  float scale(int64_t row, int64_t block) const { return scales_[row * blocks_ + block]; }
  /// The scale of a block times the sum of its numbers.
  float sum(int64_t row, int64_t block) const { return sums_[row * blocks_ + block]; }

 private:
  int64_t inner_, size_, blocks_;
  float *scales_, *sums_;
  int8_t* numbers_;
};

/// y [rows, columns] = x weights. Its units are groups of columns; every element is computed alike
/// whatever the thread.
template <int kBits>
class RoundedPanels {
 public:
  static constexpr int64_t kLanes = FloatVec::kCount, kPanels = 2, kColumns = kPanels * kLanes;

  RoundedPanels(const BlockWeights& w, const RoundedInput& x, int64_t rows, float* y,
                int64_t columns)
      : w_(w), x_(x), rows_(rows), y_(y), columns_(columns) {}

  int64_t units() const { return ceil_div(columns_, kColumns); }

  /// Units [begin, end).
  void run(int64_t begin, int64_t end) const {
    Packed packed;
    const int64_t step = std::max<int64_t>(1, kPiece / w_.size);
    for (int64_t unit = begin; unit < end; ++unit)
      for (int64_t block = 0; block < x_.blocks(); block += step) {
        const int64_t blocks = std::min(step, x_.blocks() - block);
        pack(unit * kColumns, block, blocks, packed);
        for (int64_t row = 0; row < rows_; row += kRows)
          with_few_rows(std::min(kRows, rows_ - row), [&](auto rows) {
            multiply<decltype(rows)::value>(packed, unit * kColumns, row, block, blocks);
          });
      }
  }

 private:
  static constexpr int64_t kEach = 8 / kBits;
  static constexpr int64_t kWord = 4;  // numbers of a lane of bytes
  static constexpr int64_t kPiece = RoundedRows<kBits>::kPiece;
  static constexpr int64_t kMostBlocks = kPiece / 16;
  static constexpr int64_t kRows = kVectorBytes == 64 ? 4 : 2;  // what fits in registers

  // Words of all columns, one word of each after another, and for each block their scales and those
  // times minus the zero points.
  struct Packed {
    alignas(64) int32_t words[kPiece / kWord * kColumns];
    alignas(64) float scales[kMostBlocks * kColumns], zeros[kMostBlocks * kColumns];
  };

  // Columns behind the last one are 0.
  void pack(int64_t column, int64_t block, int64_t blocks, Packed& to) const {
    const int64_t count = std::min(kColumns, columns_ - column), inner = blocks * w_.size;
    if (count < kColumns) {
      std::fill_n(to.words, inner / kWord * kColumns, 0);
      std::fill_n(to.scales, blocks * kColumns, 0.0f);
      std::fill_n(to.zeros, blocks * kColumns, 0.0f);
    }
    for (int64_t j = 0; j < count; ++j) {
      const BlockSteps<kBits> steps(w_, column + j);
      for (int64_t b = 0; b < blocks; ++b) {
        const float scale = steps.scale(block + b);
        to.scales[b * kColumns + j] = scale;
        to.zeros[b * kColumns + j] = -scale * steps.zero(block + b);
      }
    }
    constexpr int64_t kPart = 16;  // words of each column, so that they are written to few lines
    const int64_t all = inner / kWord;
    for (int64_t first = 0; first < all; first += kPart) {
      const int64_t some = std::min(kPart, all - first);
      for (int64_t j = 0; j < count; ++j) {
        const uint8_t* bytes =
            w_.template column<kBits>(column + j) + (block * w_.size + first * kWord) / kEach;
        alignas(64) uint32_t words[kPart];
        if constexpr (kBits < 8) {
          take_apart(bytes, some, words);
          bytes = reinterpret_cast<const uint8_t*>(words);
        }
        int32_t* word = to.words + first * kColumns + j;
        for (int64_t i = 0; i < some; ++i, word += kColumns)
          std::memcpy(word, bytes + i * kWord, sizeof(*word));
      }
    }
  }

  // The numbers of a word lie in as many bytes as one has bits / 2: each half of them moves to its
  // half of the word, then each of them to its byte.
  static void take_apart(const uint8_t* bytes, int64_t count, uint32_t* to) {
    using Packed = std::conditional_t<kBits == 2, uint8_t, uint16_t>;
    constexpr uint32_t kHalves = 0x00010001u * ((1u << 2 * kBits) - 1),
                       kBytes = 0x01010101u * ((1u << kBits) - 1);
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) {
      Packed packed;
      std::memcpy(&packed, bytes + i * int64_t{sizeof(packed)}, sizeof(packed));
      const uint32_t halves = (packed | uint32_t{packed} << (16 - 2 * kBits)) & kHalves;
      to[i] = (halves | halves << (8 - kBits)) & kBytes;
    }
  }

  template <int kCount>
  void multiply(const Packed& w, int64_t column, int64_t row, int64_t block, int64_t blocks) const {
    FloatVec totals[kCount][kPanels];
    ORTM_UNROLL
    for (auto& total : totals)
      for (FloatVec& each : total) each = FloatVec(0.0f);
    const int32_t* words = w.words;
    for (int64_t b = 0; b < blocks; ++b) {
      IntLanes sums[kCount][kPanels] = {};
      const int8_t* numbers[kCount];
      for (int64_t r = 0; r < kCount; ++r) numbers[r] = x_.numbers(row + r, block + b);
      for (int64_t k = 0; k < w_.size; k += kWord, words += kColumns) {
        IntLanes weights[kPanels];
        ORTM_UNROLL
        for (int64_t p = 0; p < kPanels; ++p) weights[p] = load_bytes(words + p * kLanes);
        ORTM_UNROLL
        for (int64_t r = 0; r < kCount; ++r) {
          int32_t four;
          std::memcpy(&four, numbers[r] + k, sizeof(four));
          const IntLanes factor = four - IntLanes{};
          ORTM_UNROLL
          for (int64_t p = 0; p < kPanels; ++p)
            sums[r][p] = add_byte_products(sums[r][p], weights[p], factor);
        }
      }
      ORTM_UNROLL
      for (int64_t p = 0; p < kPanels; ++p) {
        const FloatVec scales = FloatVec::load(w.scales + b * kColumns + p * kLanes),
                       zeros = FloatVec::load(w.zeros + b * kColumns + p * kLanes);
        ORTM_UNROLL
        for (int64_t r = 0; r < kCount; ++r) {
          const FloatVec sum(__builtin_convertvector(sums[r][p], FloatLanes));
          const FloatVec scale = scales * FloatVec(x_.scale(row + r, block + b));
          totals[r][p] = multiply_add(zeros, FloatVec(x_.sum(row + r, block + b)),
                                      multiply_add(sum, scale, totals[r][p]));
        }
      }
    }
    for (int64_t r = 0; r < kCount; ++r)
      for (int64_t p = 0; p < kPanels; ++p)
        add(totals[r][p], y_ + (row + r) * columns_ + column + p * kLanes,
            columns_ - column - p * kLanes, block > 0);
  }

  static void add(FloatVec total, float* y, int64_t count, bool adds) {
    if (count <= 0) return;
    if (adds) total = total + load_at_most(y, count);
    count >= kLanes ? total.store(y) : total.store(y, count);
  }

  const BlockWeights& w_;
  const RoundedInput& x_;
  int64_t rows_;
  float* y_;
  int64_t columns_;
};

#endif

}  // namespace ORTM_ISA
}  // namespace ortmodule
