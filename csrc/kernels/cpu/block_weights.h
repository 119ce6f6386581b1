// Weights of 2, 4 or 8 bits in blocks along the inner dimension, each with a scale and a zero
// point: their product with a few rows, which reads them once and keeps them in registers, and
// panels of them in 32 bits for more rows.
#pragma once

#include "kernels/cpu/panel_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// body(count) with a number of rows from 1 to 4 as a constant.
template <class Body>
void with_few_rows(int64_t count, const Body& body) {
  switch (count) {
    case 1: return body(std::integral_constant<int, 1>());
    case 2: return body(std::integral_constant<int, 2>());
    case 3: return body(std::integral_constant<int, 3>());
    default: return body(std::integral_constant<int, 4>());
  }
}

/// body(bits) with 2, 4 or 8 bits as a constant.
template <class Body>
void with_bits(int64_t bits, const Body& body) {
  switch (bits) {
    case 2: return body(std::integral_constant<int, 2>());
    case 4: return body(std::integral_constant<int, 4>());
    default: return body(std::integral_constant<int, 8>());
  }
}

/// Column by column; the first number of a byte is in its lowest bits.
struct BlockWeights {
  const uint8_t* bytes = nullptr;
  const float* scales = nullptr;
  const uint8_t* zeros = nullptr;  // null: half of the range
  int64_t size = 0, count = 0;     // of the blocks of a column

  template <int kBits>
  const uint8_t* column(int64_t j) const {
    return bytes + j * count * (size * kBits / 8);
  }
};

/// Operands 1 to 3 of MatMulNBits.
inline BlockWeights block_weights(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  BlockWeights w;
  w.bytes = args.in[1].as<uint8_t>();
  w.scales = args.in[2].as<float>();
  if (args.in.size() > 3) w.zeros = args.in[3].as<uint8_t>();
  w.size = attrs.integer("block_size");
  w.count = ceil_div(attrs.integer("K"), w.size);
  return w;
}

/// Bytes, one to a lane. By name, as in byte_vec.h.
inline IntLanes bytes_in_lanes(const uint8_t* from) {
#if defined(__AVX512F__)
  return IntLanes(
      _mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
  return IntLanes(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  IntLanes lanes;
  for (int i = 0; i < FloatVec::kCount; ++i) lanes[i] = from[i];
  return lanes;
#endif
}

/// Scale and zero point of the blocks of a column.
template <int kBits>
class BlockSteps {
 public:
  BlockSteps(const BlockWeights& w, int64_t column)
      : scales_(w.scales + column * w.count),
        zero_bytes_((w.count * kBits + 7) / 8),
        zeros_(w.zeros ? w.zeros + column * zero_bytes_ : nullptr) {}

  float scale(int64_t block) const { return scales_[block]; }
  float zero(int64_t block) const {
    if (!zeros_) return float{1 << (kBits - 1)};
    constexpr uint64_t kEach = 8 / kBits;
    const auto place = static_cast<uint64_t>(block);
    return static_cast<float>((zeros_[place / kEach] >> (place % kEach * kBits)) &
                              ((1 << kBits) - 1));
  }
  /// Zero points of the blocks from `block` on, a multiple of the lanes; 0 behind the last byte.
  FloatVec zeros(int64_t block) const {
    if (!zeros_) return FloatVec(float{1 << (kBits - 1)});
    constexpr int64_t kBytes = FloatVec::kCount * kBits / 8;
    const int64_t byte = block * kBits / 8;
    const uint8_t* from = zeros_ + byte;
    const int64_t left = zero_bytes_ - byte;
    if constexpr (kBits == 8) {
      uint8_t padded[kBytes] = {};
      if (left < kBytes) {
        std::memcpy(padded, from, static_cast<size_t>(left));
        from = padded;
      }
      return FloatVec(__builtin_convertvector(bytes_in_lanes(from), FloatLanes));
    } else {
      uint64_t all = 0;
      if (left >= kBytes) {
        std::memcpy(&all, from, kBytes);
      } else {  // few: a copy of them in memory would be waited for
        for (int64_t i = 0; i < left; ++i) all |= uint64_t{from[i]} << (8 * i);
      }
      IntLanes half, shift;  // of the 64 bits, and the place in it
      for (int lane = 0; lane < FloatVec::kCount; ++lane) {
        half[lane] = lane * kBits / 32;
        shift[lane] = lane * kBits % 32;
      }
      typedef uint64_t WordLanes __attribute__((vector_size(kVectorBytes)));
      const IntLanes words = __builtin_shuffle(IntLanes(all - WordLanes{}), half);
      const IntLanes numbers = (words >> shift) & ((1 << kBits) - 1);
      return FloatVec(__builtin_convertvector(numbers, FloatLanes));
    }
  }

 private:
  const float* scales_;
  int64_t zero_bytes_;
  const uint8_t* zeros_;
};

/// Elements [first, first + inner) of a column, at most kInnerPiece.
template <int kBits>
void widen_column(const BlockWeights& w, int64_t column, int64_t first, int64_t inner, float* to) {
  constexpr int64_t kEach = 8 / kBits;
  constexpr int kMask = (1 << kBits) - 1;
  uint8_t numbers[kInnerPiece + 2 * kEach];
  const int64_t from = first / kEach, end = ceil_div(first + inner, kEach);
  const uint8_t* bytes = w.column<kBits>(column) + from;
  ORTM_SIMD
  for (int64_t i = 0; i < end - from; ++i)
    for (int64_t part = 0; part < kEach; ++part)
      numbers[i * kEach + part] = static_cast<uint8_t>((bytes[i] >> (part * kBits)) & kMask);
  const uint8_t* number = numbers + (first - from * kEach);
  const BlockSteps<kBits> steps(w, column);
  int64_t block = first / w.size;
  for (int64_t k = 0; k < inner; ++block) {
    const int64_t stop = std::min(inner, (block + 1) * w.size - first);
    const float scale = steps.scale(block), zero = steps.zero(block);
    ORTM_SIMD
    for (int64_t i = k; i < stop; ++i) to[i] = (static_cast<float>(number[i]) - zero) * scale;
    k = stop;
  }
}

/// y [rows, columns] = x [rows, inner] weights, for few rows. Every element is computed alike
/// whatever the thread.
template <int kBits>
class BlockRows {
 public:
  /// Rows that share what is read of the weights.
  static constexpr int64_t kMostRows = 4;
  /// Elements whose bytes fill a vector with one number of each.
  static constexpr int64_t kGroup = FloatVec::kCount * (8 / kBits);

  BlockRows(const BlockWeights& w, const float* x, int64_t inner, float* y, int64_t columns)
      : w_(w), x_(x), inner_(inner), y_(y), columns_(columns) {}

  static bool fits(int64_t block_size) { return block_size % kGroup == 0; }

  /// Columns [begin, end) of rows [row, row + count).
  void run(int64_t begin, int64_t end, int64_t row, int64_t count) const {
    with_few_rows(count, [&](auto rows) { run_rows<decltype(rows)::value>(begin, end, row); });
  }

 private:
  static constexpr int64_t kEach = 8 / kBits, kLanes = FloatVec::kCount;
  static constexpr int64_t kPiece = 4096;  // of the inner dimension

  template <int kRows>
  void run_rows(int64_t begin, int64_t end, int64_t row) const {
    alignas(64) float x[kRows * kPiece];
    for (int64_t first = 0; first < inner_; first += kPiece) {
      const int64_t padded = std::min(kPiece, ceil_div(inner_ - first, kGroup) * kGroup);
      for (int64_t r = 0; r < kRows; ++r) reorder(row + r, first, padded, x + r * kPiece);
      for (int64_t column = begin; column < end; ++column) {
        float sums[kRows];
        add_column<kRows>(column, first, padded, x, sums);
        for (int64_t r = 0; r < kRows; ++r) {
          float& y = y_[(row + r) * columns_ + column];
          y = first > 0 ? y + sums[r] : sums[r];
        }
      }
    }
  }

  // The elements of a group in the order in which its bytes are taken apart.
  void reorder(int64_t row, int64_t first, int64_t padded, float* to) const {
    const float* from = x_ + row * inner_ + first;
    const int64_t inner = std::min(padded, inner_ - first);
    for (int64_t k = 0; k < padded; k += kGroup)
      for (int64_t part = 0; part < kEach; ++part)
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          const int64_t i = k + lane * kEach + part;
          to[k + part * kLanes + lane] = i < inner ? from[i] : 0.0f;
        }
  }

  template <int kRows>
  void add_column(int64_t column, int64_t first, int64_t padded, const float* x,
                  float* sums) const {
    const uint8_t* bytes = w_.column<kBits>(column) + first / kEach;
    FloatVec totals[kRows];
    ORTM_UNROLL
    for (FloatVec& total : totals) total = FloatVec(0.0f);
    const BlockSteps<kBits> steps(w_, column);
    int64_t block = first / w_.size;
    for (int64_t k = 0; k < padded; ++block) {
      const int64_t stop = std::min(padded, (block + 1) * w_.size - first);
      const FloatVec zero(steps.zero(block)), scale(steps.scale(block));
      FloatVec parts[kRows];
      ORTM_UNROLL
      for (FloatVec& part : parts) part = FloatVec(0.0f);
      for (; k < stop; k += kGroup, bytes += kLanes) {
        const IntLanes wide = bytes_in_lanes(bytes);
        ORTM_UNROLL
        for (int64_t part = 0; part < kEach; ++part) {
          const IntLanes number = (wide >> static_cast<int>(part * kBits)) & ((1 << kBits) - 1);
          const FloatVec value = FloatVec(__builtin_convertvector(number, FloatLanes)) - zero;
          ORTM_UNROLL
          for (int64_t r = 0; r < kRows; ++r) {
            const float* factor = x + r * kPiece + k + part * kLanes;
            parts[r] = multiply_add(value, FloatVec::load(factor), parts[r]);
          }
        }
      }
      ORTM_UNROLL
      for (int64_t r = 0; r < kRows; ++r) totals[r] = multiply_add(scale, parts[r], totals[r]);
    }
    for (int64_t r = 0; r < kRows; ++r) {
      float lanes[kLanes];
      totals[r].store(lanes);
      sums[r] = 0.0f;
      for (const float lane : lanes) sums[r] += lane;
    }
  }

  const BlockWeights& w_;
  const float* x_;
  int64_t inner_;
  float* y_;
  int64_t columns_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
