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

  /// total = weights [inner, kRowCount] panel, plus `sums` if there are any.
  template <int kRowCount, int kVectorCount>
  static void sum(const C* weights, const C* panel, int64_t inner, const C* sums, int64_t stride,
                  V (&total)[kRowCount][kVectorCount]) {
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
    if (!sums) return;
    ORTM_UNROLL
    for (int r = 0; r < kRowCount; ++r) {
      ORTM_UNROLL
      for (int v = 0; v < kVectorCount; ++v)
        total[r][v] = V::load(sums + r * stride + v * V::kCount) + total[r][v];
    }
  }

  /// sums [kRowCount, kVectorCount vectors] (+)= weights [inner, kRowCount] panel.
  template <int kRowCount, int kVectorCount>
  static void multiply(const C* weights, const C* panel, int64_t inner, C* sums, int64_t stride,
                       bool adds) {
    V total[kRowCount][kVectorCount];
    sum<kRowCount, kVectorCount>(weights, panel, inner, adds ? sums : nullptr, stride, total);
    ORTM_UNROLL
    for (int r = 0; r < kRowCount; ++r) {
      ORTM_UNROLL
      for (int v = 0; v < kVectorCount; ++v) total[r][v].store(sums + r * stride + v * V::kCount);
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

/// A tile of the last piece of the sum, whose results are stored as they are made.
template <class Finish>
struct LastImageTile {
  using V = FloatVec;
  using Tile = ImageTile<float>;

  /// Where the tile lies: its first output, columns of them, and pixels between outputs.
  struct Place {
    int64_t output = 0, at = 0, columns = 0, plane = 0;
  };

  template <int kRowCount, int kVectorCount>
  static void multiply(const float* weights, const float* panel, int64_t inner, const float* sums,
                       int64_t stride, const Finish& shared, const Place& place) {
    V total[kRowCount][kVectorCount];
    Tile::sum<kRowCount, kVectorCount>(weights, panel, inner, sums, stride, total);
    const int64_t rest = place.columns - (kVectorCount - 1) * V::kCount;  // in the last vector
    const Finish finish = shared;  // which no result overwrites
    ORTM_UNROLL
    for (int r = 0; r < kRowCount; ++r) {
      const V term(finish.term(place.output + r));
      const int64_t at = place.at + r * place.plane;
      ORTM_UNROLL
      for (int v = 0; v < kVectorCount; ++v) {
        if (v + 1 < kVectorCount || rest == V::kCount)
          finish.put(total[r][v] + term, at + v * V::kCount);
        else
          finish.put(total[r][v] + term, at + v * V::kCount, rest);
      }
    }
  }

  using Multiply = void (*)(const float*, const float*, int64_t, const float*, int64_t,
                            const Finish&, const Place&);
  static Multiply function(int64_t rows, int64_t vectors) {
    static constexpr auto kFunctions = []<int... i>(std::integer_sequence<int, i...>) {
      return std::array<Multiply, sizeof...(i)>{
          &multiply<i / Tile::kVectors + 1, i % Tile::kVectors + 1>...};
    }
    (std::make_integer_sequence<int, Tile::kRows * Tile::kVectors>());
    return kFunctions[static_cast<size_t>((rows - 1) * Tile::kVectors + vectors - 1)];
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
  static constexpr int64_t kMostPanels = 4;
  static constexpr int64_t kMostPixels = kMostPanels * Tile::kVectors * V::kCount;
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
    const bool puts = std::is_same_v<T, float> && finish_.can_put() && inner > 0;
    const int64_t y = (plane * s_.outputs + first_output) * s_.patches.pixels + column;
    if (inner == 0) std::fill_n(sums, (last_output - first_output) * stride, C(0));
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t first = piece * inner / pieces, last = (piece + 1) * inner / pieces;
      pack(x_ + (plane * inner + first) * s_.patches.pixels + column, last - first, columns,
           vectors, panels);
      for (int64_t output = first_output; output < last_output; output += kPackedOutputs) {
        const int64_t row = output - first_output;
        const C* w = weights + output * inner + first * kPackedOutputs;
        const Block block{w,
                          panels,
                          last - first,
                          vectors,
                          columns,
                          std::min(kPackedOutputs, last_output - output),
                          sums + row * stride,
                          piece > 0,
                          w + kPackedOutputs * inner};
        if (puts && piece + 1 == pieces)
          put(block, group * s_.outputs + output, y + row * s_.patches.pixels);
        else
          multiply(block);
      }
    }
    if (puts) return;
    for (int64_t output = first_output; output < last_output; ++output)
      write_line(sums + (output - first_output) * stride,
                 y + (output - first_output) * s_.patches.pixels, columns,
                 finish_.term(group * s_.outputs + output));
  }

  static int64_t panels_of(int64_t vectors) { return ceil_div(vectors, Tile::kVectors); }

  /// Panels of whole vectors, with zeros behind the last pixel. Line by line, each once: they lie
  /// in the last-level cache as a rule, and on pages of their own.
  void pack(const T* x, int64_t inner, int64_t columns, int64_t vectors, C* to) const {
    const int64_t panels = panels_of(vectors), whole = columns / V::kCount;
    std::array<int64_t, kMostPanels + 1> first{};  // vectors
    for (int64_t panel = 1; panel <= panels; ++panel)
      first[static_cast<size_t>(panel)] = panel * vectors / panels;
    for (int64_t k = 0; k < inner; ++k, x += s_.patches.pixels) {
      for (size_t panel = 0; panel < static_cast<size_t>(panels); ++panel) {
        const int64_t begin = first[panel], end = first[panel + 1];
        C* row = to + (begin * inner + k * (end - begin) - begin) * V::kCount;
        for (int64_t v = begin; v < std::min(end, whole); ++v)
          pack_vector(x + v * V::kCount, row + v * V::kCount);
      }
      if (whole < vectors) {
        const int64_t begin = first[static_cast<size_t>(panels) - 1], width = vectors - begin;
        pack_part(x + whole * V::kCount, columns - whole * V::kCount,
                  to + (begin * inner + k * width + whole - begin) * V::kCount);
      }
    }
  }

  static void pack_vector(const T* from, C* to) {
    if constexpr (std::is_same_v<T, float>)
      V::load(from).store(to);
    else
      pack_part(from, V::kCount, to);
  }
  static void pack_part(const T* from, int64_t count, C* to) {
    if constexpr (std::is_same_v<T, float>)
      V::load(from, count).store(to);
    else
      for (int64_t j = 0; j < V::kCount; ++j) to[j] = j < count ? computed(from[j]) : C(0);
  }

  /// Outputs of a block of packed weights, for a piece of the sum.
  struct Block {
    const C* weights;
    const C* panels;
    int64_t inner, vectors, columns, outputs;
    C* sums;
    bool adds;
    const C* next;  // weights of the next block
  };

  /// body(first of the rows, rows, first of the vectors, vectors) for all tiles of a block.
  template <class Body>
  static void for_each_tile(const Block& b, const Body& body) {
    const int64_t count = panels_of(b.vectors), rows = ceil_div(b.outputs, Tile::kRows);
    const NextWeights<C> next(b.next, b.inner * kPackedOutputs, count * rows);
    for (int64_t panel = 0; panel < count; ++panel) {
      const int64_t begin = panel * b.vectors / count, end = (panel + 1) * b.vectors / count;
      for (int64_t row = 0; row < rows; ++row) {
        next.prefetch(panel * rows + row);
        const int64_t first = row * Tile::kRows;
        body(first, std::min<int64_t>(Tile::kRows, b.outputs - first), begin, end - begin);
      }
    }
  }

  void multiply(const Block& b) const {
    const int64_t stride = b.vectors * V::kCount;
    for_each_tile(b, [&](int64_t row, int64_t rows, int64_t first, int64_t vectors) {
      const int64_t column = first * V::kCount;
      Tile::function(rows, vectors)(b.weights + row, b.panels + column * b.inner, b.inner,
                                    b.sums + row * stride + column, stride, b.adds);
    });
  }

  /// Of the last piece: results of outputs [output, ...) from y[at] on.
  void put(const Block& b, int64_t output, int64_t at) const {
    if constexpr (std::is_same_v<T, float>) {
      using Last = LastImageTile<Finish>;
      const int64_t stride = b.vectors * V::kCount, plane = s_.patches.pixels;
      for_each_tile(b, [&](int64_t row, int64_t rows, int64_t first, int64_t vectors) {
        const int64_t column = first * V::kCount;
        const int64_t columns = std::min(vectors * V::kCount, b.columns - column);
        Last::function(rows, vectors)(b.weights + row, b.panels + column * b.inner, b.inner,
                                      b.adds ? b.sums + row * stride + column : nullptr, stride,
                                      finish_,
                                      {output + row, at + row * plane + column, columns, plane});
      });
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
