// A convolution as an implicit product over bands of an image (conv_shape.h).
#pragma once

#include "kernels/cpu/conv_band.h"
#include "kernels/cpu/conv_finish.h"
#include "kernels/cpu/conv_tile.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Writes sums [pixels, outputs], `stride` apart and whole vectors of pixels, as lines of pixels:
/// results of outputs [output, ...) where that is all, else sums with their terms to `lines`.
template <class T, class Finish>
class ProductStore {
 public:
  using C = ComputeOf<T>;
  using V = VecOf<C>;

  explicit ProductStore(const Finish& finish) : finish_(finish) {}

  /// Output o of pixel p goes to y[at + o * plane + p]; its bias is that of `output` + o.
  void run(const C* sums, int64_t stride, int64_t pixels, int64_t outputs, int64_t output,
           int64_t at, int64_t plane, C* lines, int64_t line_stride) const {
    if constexpr (std::is_same_v<T, float>) {
      if (finish_.is_direct())
        return write_lines(sums, stride, pixels, outputs, output, finish_.y() + at, plane);
      if (finish_.can_put()) return put(sums, stride, pixels, outputs, output, at, plane);
    }
    write_lines(sums, stride, pixels, outputs, output, lines, line_stride);
    for (int64_t o = 0; o < outputs; ++o)
      finish_.write(lines + o * line_stride, at + o * plane, pixels);
  }

 private:
  /// store(made(sums, terms) of pixels [p, p + count) of output o, o, p, count)
  template <class Make, class Store>
  void transpose(const C* sums, int64_t stride, int64_t pixels, int64_t outputs, int64_t output,
                 const Make& made, const Store& store) const {
    constexpr int64_t kCount = V::kCount;
    for (int64_t o = 0; o < outputs; o += kCount) {
      const int64_t some = std::min(kCount, outputs - o);
      float terms[kCount] = {};
      for (int64_t i = 0; i < some; ++i) terms[i] = finish_.term(output + o + i);
      const V term = V::load(terms);
      for (int64_t p = 0; p < pixels; p += kCount) {
        V square[kCount];
        ORTM_UNROLL
        for (int64_t i = 0; i < kCount; ++i)
          square[i] = made(V::load(sums + (p + i) * stride + o), term);
        transpose_square(square);
        const int64_t count = std::min(kCount, pixels - p);
        for (int64_t i = 0; i < some; ++i) store(square[i], o + i, p, count);
      }
    }
  }

  /// Results, from y[at] on.
  void put(const C* sums, int64_t stride, int64_t pixels, int64_t outputs, int64_t output,
           int64_t at, int64_t plane) const {
    const Finish finish = finish_;  // which no result overwrites
    transpose(
        sums, stride, pixels, outputs, output, [](V sum, V term) { return sum + term; },
        [&](V x, int64_t o, int64_t p, int64_t count) {
          const int64_t to = at + o * plane + p;
          count == V::kCount ? finish.put(x, to) : finish.put(x, to, count);
        });
  }

  /// Sums with their terms, clipped if nothing is added to them.
  void write_lines(const C* sums, int64_t stride, int64_t pixels, int64_t outputs, int64_t output,
                   C* to, int64_t to_stride) const {
    if constexpr (std::is_same_v<C, float>) {
      transpose(
          sums, stride, pixels, outputs, output,
          [&](V sum, V term) { return finish_.clipped(sum, term); },
          [&](V x, int64_t o, int64_t p, int64_t count) {
            float* target = to + o * to_stride + p;
            count == V::kCount ? x.store(target) : x.store(target, count);
          });
    } else {
      for (int64_t o = 0; o < outputs; ++o) {
        const C term = finish_.term(output + o);
        for (int64_t p = 0; p < pixels; ++p)
          to[o * to_stride + p] = finish_.clipped(sums[p * stride + o], term);
      }
    }
  }

  const Finish& finish_;
};

template <class T, class Finish = ConvFinish<T>>
class ConvProduct {
 public:
  using C = ComputeOf<T>;
  using Tile = ConvTile<C>;

  /// `weights` are packed, group by group.
  ConvProduct(const ConvShape& s, const T* x, const C* weights, const Finish& finish)
      : s_(s), x_(x), weights_(weights), finish_(finish) {}

  static int64_t units(const ConvShape& s) { return s.images * s.groups * s.bands() * s.parts; }
  /// Elements of scratch of a thread.
  static int64_t scratch_elements(const ConvShape& s) {
    return 2 * kSums + ceil_div(s.band_elements, 16) * 16;
  }

  /// Units [begin, end).
  void run(int64_t begin, int64_t end, C* scratch) const {
    int64_t laid_out = -1;
    C* band_memory = scratch + 2 * kSums;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t part = unit % s_.parts, index = unit / s_.parts;
      const int64_t plane = index / s_.bands();  // of an image and group
      const ImageBand band = s_.band(index % s_.bands());
      if (index != laid_out)
        lay_out_pixels<C>(s_, band, x_ + plane * s_.channels * s_.patches.in_pixels, band_memory);
      laid_out = index;
      const int64_t tiles = ceil_div(s_.outputs, Tile::kOutputs);
      int64_t output = part * tiles / s_.parts * Tile::kOutputs;
      const int64_t last = std::min((part + 1) * tiles / s_.parts * Tile::kOutputs, s_.outputs);
      while (output < last) {
        const int64_t vectors = Tile::vectors(last - output);
        run_outputs(plane, band, output, vectors, band_memory, scratch);
        output += vectors * VecOf<C>::kCount;
      }
    }
  }

 private:
  /// Pixels whose sums wait for the next piece: whole tiles and vectors. Their sums in memory.
  static constexpr int64_t kChunk = kVectorBytes == 64 ? 96 : 192;
  static constexpr int64_t kSums = kChunk * Tile::kMostVectors * VecOf<C>::kCount;

  void run_outputs(int64_t plane, const ImageBand& band, int64_t output, int64_t vectors,
                   const C* x, C* scratch) const {
    const int64_t group = plane % s_.groups, block_stride = s_.inner() * kPackedOutputs;
    const int64_t stride = vectors * VecOf<C>::kCount;
    const int64_t outputs = std::min(stride, s_.outputs - output);
    const C* weights = weights_ + group * packed_weight_elements(s_.outputs, s_.inner()) +
                       output / kPackedOutputs * block_stride + output % kPackedOutputs;
    const ProductStore<T, Finish> store(finish_);
    const int64_t pixels = band.pixels(), chunks = ceil_div(pixels, kChunk);
    int64_t offsets[kChunk];
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = chunk * pixels / chunks, count = (chunk + 1) * pixels / chunks - first;
      write_offsets(band, first, count, offsets);
      multiply(x, offsets, count, weights, block_stride, vectors, scratch);
      store.run(scratch, stride, count, outputs, group * s_.outputs + output,
                (plane * s_.outputs + output) * s_.patches.pixels + s_.first_pixel(band) + first,
                s_.patches.pixels, scratch + kSums, kChunk);
    }
  }

  void multiply(const C* x, const int64_t* offsets, int64_t pixels, const C* weights,
                int64_t block_stride, int64_t vectors, C* sums) const {
    const int64_t stride = vectors * VecOf<C>::kCount;
    if (s_.pieces.empty()) std::fill_n(sums, pixels * stride, C(0));
    // Tiles of equal height: one of two pixels would take nearly as long as one of all.
    const int64_t tiles = ceil_div(pixels, Tile::pixels(vectors));
    const int64_t height = pixels / tiles, higher = pixels % tiles;
    bool adds = false;
    for (const SumPiece& piece : s_.pieces) {
      const int64_t elements = piece.runs * piece.length * kPackedOutputs;
      const NextWeights<C> next(weights + elements, elements, tiles);
      for (int64_t tile = 0, first = 0, count = 0; tile < tiles; ++tile, first += count) {
        next.prefetch(tile);
        count = height + (tile < higher ? 1 : 0);
        Tile::function(count, vectors)(x, offsets + first, s_.runs.data(), piece, weights,
                                       block_stride, sums + first * stride, adds);
      }
      weights += elements;
      adds = true;
    }
  }

  /// Where the windows of pixels [first, first + count) of a band begin.
  void write_offsets(const ImageBand& band, int64_t first, int64_t count, int64_t* offsets) const {
    const int64_t down = s_.row.hop * s_.line_elements, right = s_.column.hop * s_.pixel_stride;
    int64_t row = first / band.columns, column = first % band.columns;
    for (int64_t i = 0; i < count; ++i) {
      offsets[i] = row * down + column * right;
      if (++column < band.columns) continue;
      column = 0;
      ++row;
    }
  }

  const ConvShape& s_;
  const T* x_;
  const C* weights_;
  const Finish& finish_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
