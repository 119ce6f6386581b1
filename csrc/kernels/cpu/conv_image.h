// A convolution with windows of one place and stride 1: packed weights times the image as it is,
// of which blocks of pixels are packed into panels.
#pragma once

#include "kernels/cpu/conv_finish.h"
#include "kernels/cpu/conv_tile.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Some outputs of a block of packed weights times some vectors of pixels.
template <class C>
struct ImageTile {
  using V = VecOf<C>;
  /// 12 of 16 registers hold sums, or 24 of the 32 that AVX-512 has.
  static constexpr int kRows = kVectorBytes == 64 ? 8 : 4, kVectors = 3;

  /// sums [kRowCount, kVectorCount vectors] (+)= weights [inner, kRowCount] panel.
  template <int kRowCount, int kVectorCount>
  static void multiply(const C* weights, const C* panel, int64_t inner, C* sums, int64_t stride,
                       bool adds) {
    V total[kRowCount][kVectorCount];
    ORTM_UNROLL
    for (int r = 0; r < kRowCount; ++r) {
      ORTM_UNROLL
      for (int v = 0; v < kVectorCount; ++v) total[r][v] = V(C(0));
    }
    for (int64_t k = 0; k < inner; ++k) {
      V pixels[kVectorCount];
      ORTM_UNROLL
      for (int v = 0; v < kVectorCount; ++v) pixels[v] = V::load(panel + v * V::kCount);
      ORTM_UNROLL
      for (int r = 0; r < kRowCount; ++r) {
        const V weight(weights[r]);
        ORTM_UNROLL
        for (int v = 0; v < kVectorCount; ++v)
          total[r][v] = multiply_add(weight, pixels[v], total[r][v]);
      }
      weights += kPackedOutputs;
      panel += kVectorCount * V::kCount;
    }
    ORTM_UNROLL
    for (int r = 0; r < kRowCount; ++r) {
      ORTM_UNROLL
      for (int v = 0; v < kVectorCount; ++v) {
        C* to = sums + r * stride + v * V::kCount;
        (adds ? V::load(to) + total[r][v] : total[r][v]).store(to);
      }
    }
  }

  using Multiply = void (*)(const C*, const C*, int64_t, C*, int64_t, bool);
  static Multiply function(int64_t rows, int64_t vectors) {
    static constexpr auto kFunctions = []<int... i>(std::integer_sequence<int, i...>) {
      return std::array<Multiply, sizeof...(i)>{&multiply<i / kVectors + 1, i % kVectors + 1>...};
    }
    (std::make_integer_sequence<int, kRows * kVectors>());
    return kFunctions[static_cast<size_t>((rows - 1) * kVectors + vectors - 1)];
  }
};

template <class T, class Finish = ConvFinish<T>>
class ConvImage {
 public:
  using C = ComputeOf<T>;
  using Tile = ImageTile<C>;

  /// `weights` are packed, group by group.
  ConvImage(const ConvShape& s, const T* x, const C* weights, const Finish& finish)
      : s_(s), x_(x), weights_(weights), finish_(finish) {}

  /// Units are blocks of pixels, each for a part of the outputs.
  static int64_t units(const ConvShape& s) { return s.images * s.groups * blocks(s) * parts(s); }
  /// Elements of scratch of a thread.
  static int64_t scratch_elements(const ConvShape&) {
    return (kMostInner + kMostOutputs) * kMostPixels;
  }

  /// Units [begin, end).
  void run(int64_t begin, int64_t end, C* scratch) const {
    const int64_t outputs = ceil_div(s_.outputs, kPackedOutputs);  // in blocks
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t part = unit % parts(s_), index = unit / parts(s_);
      const int64_t plane = index / blocks(s_), block = index % blocks(s_);
      const int64_t first = part * outputs / parts(s_) * kPackedOutputs;
      const int64_t last = (part + 1) * outputs / parts(s_) * kPackedOutputs;
      run_block(plane, vector_of(block), vector_of(block + 1), first, std::min(last, s_.outputs),
                scratch);
    }
  }

 private:
  using V = VecOf<C>;
  /// A panel of so many elements of the sum stays in the first-level cache, with weights.
  static constexpr int64_t kMostInner = 160;
  static constexpr int64_t kMostPixels = 4 * Tile::kVectors * V::kCount;
  static constexpr int64_t kMostOutputs = 256;

  static int64_t vectors(const ConvShape& s) { return ceil_div(s.patches.pixels, V::kCount); }
  static int64_t blocks(const ConvShape& s) {
    return ceil_div(vectors(s), kMostPixels / V::kCount);
  }
  int64_t vector_of(int64_t block) const { return block * vectors(s_) / blocks(s_); }
  static int64_t parts(const ConvShape& s) {
    return std::max(s.parts, ceil_div(s.outputs, kMostOutputs));
  }

  void run_block(int64_t plane, int64_t first_vector, int64_t last_vector, int64_t first_output,
                 int64_t last_output, C* scratch) const {
    C *panels = scratch, *sums = scratch + kMostInner * kMostPixels;
    const int64_t vectors = last_vector - first_vector, column = first_vector * V::kCount;
    const int64_t columns = std::min(last_vector * V::kCount, s_.patches.pixels) - column;
    const int64_t inner = s_.channels, pieces = ceil_div(inner, kMostInner);
    const int64_t group = plane % s_.groups, stride = vectors * V::kCount;
    const C* weights = weights_ + group * packed_weight_elements(s_.outputs, inner);
    if (inner == 0) std::fill_n(sums, (last_output - first_output) * stride, C(0));
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t first = piece * inner / pieces, last = (piece + 1) * inner / pieces;
      pack(x_ + (plane * inner + first) * s_.patches.pixels + column, last - first, columns,
           vectors, panels);
      for (int64_t output = first_output; output < last_output; output += kPackedOutputs)
        multiply(weights + output * inner + first * kPackedOutputs, last - first, vectors,
                 std::min(kPackedOutputs, last_output - output), panels,
                 sums + (output - first_output) * stride, piece > 0);
    }
    for (int64_t output = first_output; output < last_output; ++output)
      write_line(sums + (output - first_output) * stride,
                 (plane * s_.outputs + output) * s_.patches.pixels + column, columns,
                 finish_.term(group * s_.outputs + output));
  }

  static int64_t panels_of(int64_t vectors) { return ceil_div(vectors, Tile::kVectors); }

  /// Panels of whole vectors, with zeros behind the last pixel.
  void pack(const T* x, int64_t inner, int64_t columns, int64_t vectors, C* to) const {
    const int64_t panels = panels_of(vectors);
    for (int64_t panel = 0; panel < panels; ++panel) {
      const int64_t begin = panel * vectors / panels, end = (panel + 1) * vectors / panels;
      const int64_t column = begin * V::kCount, width = (end - begin) * V::kCount;
      const int64_t count = std::min(width, columns - column);
      const T* from = x + column;
      for (int64_t k = 0; k < inner; ++k, from += s_.patches.pixels, to += width) {
        if constexpr (std::is_same_v<T, float>) {
          int64_t j = 0;
          for (; j + V::kCount <= count; j += V::kCount) V::load(from + j).store(to + j);
          if (j < count) V::load(from + j, count - j).store(to + j);
        } else {
          for (int64_t j = 0; j < count; ++j) to[j] = computed(from[j]);
          for (int64_t j = count; j < width; ++j) to[j] = C(0);
        }
      }
    }
  }

  /// Outputs of a block of packed weights.
  void multiply(const C* weights, int64_t inner, int64_t vectors, int64_t outputs, const C* panels,
                C* sums, bool adds) const {
    const int64_t count = panels_of(vectors), stride = vectors * V::kCount;
    for (int64_t panel = 0; panel < count; ++panel) {
      const int64_t begin = panel * vectors / count, end = (panel + 1) * vectors / count;
      for (int64_t row = 0; row < outputs; row += Tile::kRows) {
        const int64_t rows = std::min<int64_t>(Tile::kRows, outputs - row);
        Tile::function(rows, end - begin)(weights + row, panels + begin * V::kCount * inner, inner,
                                          sums + row * stride + begin * V::kCount, stride, adds);
      }
    }
  }

  void write_line(C* sums, int64_t at, int64_t count, C term) const {
    C* to = sums;
    if constexpr (std::is_same_v<C, T>)
      if (finish_.is_direct()) to = finish_.y() + at;
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) to[i] = finish_.clipped(sums[i], term);
    if (to == sums) finish_.write(sums, at, count);
  }

  const ConvShape& s_;
  const T* x_;
  const C* weights_;
  const Finish& finish_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
