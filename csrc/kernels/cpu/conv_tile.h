// A tile of an implicit product: some pixels of a band times some outputs. Weights are packed in
// blocks of kPackedOutputs outputs, in which a row holds what one element of the window is
// multiplied with.
// (Dukhan, "The Indirect Convolution Algorithm", 2019, also leaves the matrix of windows unmade.)
#pragma once

#include <array>

#include "kernels/cpu/conv_shape.h"
#include "kernels/cpu/half_rows.h"
#include "kernels/cpu/panel_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Outputs in a block of packed weights, for all instruction sets and types.
inline constexpr int64_t kPackedOutputs = 16;

/// The weights that come next are asked for while tiles multiply: they are read once for all pixels
/// of a block, and often come from memory.
template <class C>
class NextWeights {
 public:
  NextWeights(const C* weights, int64_t count, int64_t tiles)
      : weights_(weights), lines_(count / kCacheLine), step_(ceil_div(lines_, tiles)) {}

  /// The part for one of the tiles.
  void prefetch(int64_t tile) const {
    const int64_t first = tile * step_, last = std::min(first + step_, lines_);
    for (int64_t line = first; line < last; ++line)
      __builtin_prefetch(weights_ + line * kCacheLine, 0, 2);
  }

 private:
  static constexpr int64_t kCacheLine = 64 / sizeof(C);
  const C* weights_;
  int64_t lines_, step_;
};

template <class C>
struct ConvTile {
  using V = VecOf<C>;
  /// 12 of 16 registers hold sums, or 24 of the 32 that AVX-512 has.
  static constexpr int kVectors = kVectorBytes == 64 ? 4 : 2;
  static constexpr int kMostVectors = V::kCount == 8 ? std::max(kVectors, 3) : kVectors;
  static constexpr int kMostPixels = 8;
  /// Outputs of a tile but the last ones.
  static constexpr int64_t kOutputs = kVectors * V::kCount;

  /// Pixels of a tile of so many vectors of outputs.
  static int64_t pixels(int64_t vectors) {
    if (kVectorBytes == 64) return vectors == 4 ? 6 : 8;
    return vectors == 1 ? 8 : 12 / vectors;
  }
  /// Vectors of the next tile where so many outputs are left: all of them if they are few. A tile
  /// begins with a block of packed weights, or lies within one.
  static int64_t vectors(int64_t outputs) {
    const int64_t left = (outputs + V::kCount - 1) / V::kCount;
    return left <= kMostVectors ? left : kVectors;
  }

  /// total = the windows at x + offsets times weights over a piece, plus `sums` [kPixelCount,
  /// kVectorCount vectors] if there are any. `w` points at the piece's first row in the first
  /// block; blocks are `block_stride` apart.
  template <int kPixelCount, int kVectorCount>
  static void sum(const C* x, const int64_t* offsets, const int64_t* runs, const SumPiece& piece,
                  const C* w, int64_t block_stride, const C* sums,
                  V (&total)[kPixelCount][kVectorCount]) {
    const C* pixels[kPixelCount];
    ORTM_UNROLL
    for (int p = 0; p < kPixelCount; ++p) {
      pixels[p] = x + offsets[p];
      ORTM_UNROLL
      for (int v = 0; v < kVectorCount; ++v) total[p][v] = V(C(0));
    }
    for (int64_t r = 0; r < piece.runs; ++r) {
      const int64_t begin = runs[piece.first_run + r] + piece.begin, end = begin + piece.length;
      constexpr int64_t kLine = 64 / sizeof(C);
      for (int64_t first = begin; first < end;) {
        const int64_t last = piece.ahead > 0 ? std::min(first + kLine, end) : end;
        if (piece.ahead > 0) {
          ORTM_UNROLL
          for (int p = 0; p < kPixelCount; ++p) __builtin_prefetch(pixels[p] + first + piece.ahead);
        }
        for (int64_t k = first; k < last; ++k, w += kPackedOutputs) {
          V weights[kVectorCount];
          ORTM_UNROLL
          for (int v = 0; v < kVectorCount; ++v) {
            constexpr auto count = V::kCount;
            weights[v] =
                V::load(w + v * count / kPackedOutputs * block_stride + v * count % kPackedOutputs);
          }
          ORTM_UNROLL
          for (int p = 0; p < kPixelCount; ++p) {
            const V factor(pixels[p][k]);
            ORTM_UNROLL
            for (int v = 0; v < kVectorCount; ++v)
              total[p][v] = multiply_add(factor, weights[v], total[p][v]);
          }
        }
        first = last;
      }
    }
    if (!sums) return;
    ORTM_UNROLL
    for (int p = 0; p < kPixelCount; ++p) {
      ORTM_UNROLL
      for (int v = 0; v < kVectorCount; ++v)
        total[p][v] = V::load(sums + (p * kVectorCount + v) * V::kCount) + total[p][v];
    }
  }

  /// sums (+)= the windows at x + offsets times weights over a piece.
  template <int kPixelCount, int kVectorCount>
  static void multiply(const C* x, const int64_t* offsets, const int64_t* runs,
                       const SumPiece& piece, const C* w, int64_t block_stride, C* sums,
                       bool adds) {
    V total[kPixelCount][kVectorCount];
    sum<kPixelCount, kVectorCount>(x, offsets, runs, piece, w, block_stride, adds ? sums : nullptr,
                                   total);
    ORTM_UNROLL
    for (int p = 0; p < kPixelCount; ++p) {
      ORTM_UNROLL
      for (int v = 0; v < kVectorCount; ++v)
        total[p][v].store(sums + (p * kVectorCount + v) * V::kCount);
    }
  }

  using Multiply = void (*)(const C*, const int64_t*, const int64_t*, const SumPiece&, const C*,
                            int64_t, C*, bool);
  /// The function for so many pixels and vectors.
  static Multiply function(int64_t pixels, int64_t vectors) {
    static constexpr auto kFunctions = []<int... i>(std::integer_sequence<int, i...>) {
      return std::array<Multiply, sizeof...(i)>{
          &multiply<i / kMostVectors + 1, i % kMostVectors + 1>...};
    }
    (std::make_integer_sequence<int, kMostPixels * kMostVectors>());
    return kFunctions[static_cast<size_t>((pixels - 1) * kMostVectors + vectors - 1)];
  }
};

/// Packed weights in float32, or in float16, of which a piece is widened at a time.
struct PackedWeights {
  const float* wide = nullptr;
  const Float16* half = nullptr;

  PackedWeights from(int64_t element) const {
    return half ? PackedWeights{nullptr, half + element} : PackedWeights{wide + element, nullptr};
  }
  void prefetch(int64_t first, int64_t count, int64_t tiles, int64_t tile) const {
    if (half)
      NextWeights<Float16>(half + first, count, tiles).prefetch(tile);
    else
      NextWeights<float>(wide + first, count, tiles).prefetch(tile);
  }
};

/// Elements of packed weights of a group.
inline int64_t packed_weight_elements(int64_t outputs, int64_t inner) {
  return ceil_div(outputs, kPackedOutputs) * kPackedOutputs * inner;
}

/// Packs block `block` of a group's weights w [outputs, channels, places]: [places, channels,
/// kPackedOutputs], with zeros for outputs that do not exist.
template <class C, class T>
void pack_weight_block(const T* w, int64_t outputs, int64_t channels, int64_t places, int64_t block,
                       C* to) {
  const int64_t first = block * kPackedOutputs, count = std::min(kPackedOutputs, outputs - first);
  const int64_t inner = channels * places;
  const T* from = w + first * inner;
  for (int64_t channel = 0; channel < channels; ++channel)
    for (int64_t place = 0; place < places; ++place, ++from) {
      C* row = to + (place * channels + channel) * kPackedOutputs;
      for (int64_t o = 0; o < count; ++o) row[o] = computed(from[o * inner]);
      for (int64_t o = count; o < kPackedOutputs; ++o) row[o] = C(0);
    }
}

/// Packs block `block` of windows of one channel each, w [channels, places]: [places,
/// kPackedOutputs], with zeros for channels that do not exist.
template <class T>
void pack_channel_block(const T* w, int64_t channels, int64_t places, int64_t block, T* to) {
  const int64_t first = block * kPackedOutputs;
  for (int64_t place = 0; place < places; ++place)
    for (int64_t c = first; c < first + kPackedOutputs; ++c)
      *to++ = c < channels ? w[c * places + place] : T(0);
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
