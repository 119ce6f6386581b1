// A convolution of images whose channels lie side by side (channels-last), as an implicit product
// (conv_shape.h): windows are runs of the image as it lies, or of a band with zeros beside it.
#pragma once

#include "kernels/cpu/conv_finish.h"
#include "kernels/cpu/conv_tile.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// A tile of the last piece of the sum, whose results are stored as they are made.
struct LastPixelTile {
  using V = FloatVec;
  using Tile = ConvTile<float>;

  /// The first output of the tile, how many are left, and where in y each pixel begins.
  struct Place {
    int64_t output = 0, outputs = 0;
    const int64_t* at = nullptr;
  };

  template <int kPixelCount, int kVectorCount>
  static void multiply(const float* x, const int64_t* offsets, const int64_t* runs,
                       const SumPiece& piece, const float* w, int64_t block_stride,
                       const float* sums, const ConvFinish<float>& shared, const Place& place) {
    V total[kPixelCount][kVectorCount];
    Tile::sum<kPixelCount, kVectorCount>(x, offsets, runs, piece, w, block_stride, sums, total);
    const ConvFinish<float> finish = shared;  // which no result overwrites
    const int64_t rest = place.outputs - (kVectorCount - 1) * V::kCount;  // in the last vector
    V terms[kVectorCount];
    ORTM_UNROLL
    for (int v = 0; v < kVectorCount; ++v)
      terms[v] =
          finish.terms(place.output + v * V::kCount, v + 1 < kVectorCount ? V::kCount : rest);
    ORTM_UNROLL
    for (int p = 0; p < kPixelCount; ++p) {
      const int64_t at = place.at[p] + place.output;
      ORTM_UNROLL
      for (int v = 0; v < kVectorCount; ++v) {
        if (v + 1 < kVectorCount || rest >= V::kCount)
          finish.put(total[p][v] + terms[v], at + v * V::kCount);
        else
          finish.put(total[p][v] + terms[v], at + v * V::kCount, rest);
      }
    }
  }

  using Multiply = void (*)(const float*, const int64_t*, const int64_t*, const SumPiece&,
                            const float*, int64_t, const float*, const ConvFinish<float>&,
                            const Place&);
  static Multiply function(int64_t pixels, int64_t vectors) {
    static constexpr auto kFunctions = []<int... i>(std::integer_sequence<int, i...>) {
      return std::array<Multiply, sizeof...(i)>{
          &multiply<i / Tile::kMostVectors + 1, i % Tile::kMostVectors + 1>...};
    }
    (std::make_integer_sequence<int, Tile::kMostPixels * Tile::kMostVectors>());
    return kFunctions[static_cast<size_t>((pixels - 1) * Tile::kMostVectors + vectors - 1)];
  }
};

class ConvPixels {
 public:
  using Tile = ConvTile<float>;

  /// `weights` are packed, group by group.
  ConvPixels(const ConvShape& s, const float* x, const PackedWeights& weights,
             const ConvFinish<float>& finish)
      : s_(s), x_(x), weights_(weights), finish_(finish) {}

  static int64_t units(const ConvShape& s) { return s.images * s.bands() * s.parts; }
  /// Elements of scratch of a thread.
  static int64_t scratch_elements(const ConvShape& s) {
    return kSums + widened_elements(s) + ceil_div(band_elements(s), 16) * 16;
  }

  /// Units [begin, end).
  void run(int64_t begin, int64_t end, float* scratch) const {
    int64_t seen = -1;
    View view;
    if (s_.seeks_pixels) std::fill_n(scratch + kSums + widened_elements(s_), s_.channels, 0.0f);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t part = unit % s_.parts, index = unit / s_.parts;
      if (index != seen)
        view = view_of(index / s_.bands(), s_.band(index % s_.bands()),
                       scratch + kSums + widened_elements(s_));
      seen = index;
      if (s_.groups > 1) {
        const int64_t last = (part + 1) * s_.groups / s_.parts;
        for (int64_t group = part * s_.groups / s_.parts; group < last; ++group)
          run_outputs(view, group, 0, s_.outputs, scratch);
      } else {
        const int64_t tiles = ceil_div(s_.outputs, Tile::kOutputs);
        const int64_t last = (part + 1) * tiles / s_.parts * Tile::kOutputs;
        run_outputs(view, 0, part * tiles / s_.parts * Tile::kOutputs, std::min(last, s_.outputs),
                    scratch);
      }
    }
  }

 private:
  /// Pixels whose sums wait for the next piece. Their sums in memory.
  static constexpr int64_t kChunk = kVectorBytes == 64 ? 96 : 192;
  static constexpr int64_t kSums = kChunk * Tile::kMostVectors * FloatVec::kCount;

  /// Blocks of packed weights that a tile reads at most.
  static constexpr int64_t kMostBlocks =
      (Tile::kMostVectors * FloatVec::kCount + kPackedOutputs - 1) / kPackedOutputs;

  /// Elements of a piece of weights that is widened.
  static int64_t widened_elements(const ConvShape& s) {
    int64_t most = 0;
    if (s.half_weights)
      for (const SumPiece& piece : s.pieces) most = std::max(most, piece.runs * piece.length);
    return most * kPackedOutputs * kMostBlocks;
  }

  /// What a band sees, in the image or in memory of the thread.
  struct View {
    int64_t image = 0;
    ImageBand band;
    const float* x = nullptr;
    const float* zeros = nullptr;
  };

  /// Some pixels of a band, and where their windows begin at x.
  struct Chunk {
    const View& view;
    const float* x = nullptr;
    int64_t first = 0, count = 0;
    int64_t* offsets = nullptr;
  };

  /// Elements of a band that is laid out, or of zeros.
  static int64_t band_elements(const ConvShape& s) {
    return s.seeks_pixels ? s.channels : s.band_elements;
  }

  View view_of(int64_t image, const ImageBand& band, float* memory) const {
    const float* x = x_ + image * s_.x_image;
    if (s_.seeks_pixels) return {image, band, x, memory};
    if (s_.in_place) {
      const int64_t row = s_.row.origin(band.row), column = s_.column.origin(band.column);
      return {image, band, x + row * s_.x_row + column * s_.x_pixel};
    }
    lay_out(band, x, memory);
    return {image, band, memory};
  }

  /// Lines of the band, with zeros beside the image.
  void lay_out(const ImageBand& band, const float* x, float* to) const {
    const int64_t count = s_.column.span(band.columns), left = s_.column.origin(band.column);
    const int64_t channels = s_.groups * s_.channels, pixel = s_.pixel_stride;
    const int64_t step = s_.column.step * s_.x_pixel;
    const auto [first, last] = s_.inside(left, count);
    s_.for_each_line(band, [&, first = first, last = last](int64_t line, int64_t at) {
      float* target = to + line * s_.line_elements;
      if (at < 0) {
        std::fill_n(target, count * pixel, 0.0f);
        return;
      }
      const float* from = x + at * s_.x_row + left * s_.x_pixel + first * step;
      std::fill_n(target, first * pixel, 0.0f);
      copy_pixels(from, step, last - first, channels, target + first * pixel, pixel);
      std::fill_n(target + last * pixel, (count - last) * pixel, 0.0f);
    });
  }

  static void copy_pixels(const float* from, int64_t step, int64_t count, int64_t channels,
                          float* to, int64_t pixel) {
    if (step == channels && pixel == channels) {
      std::copy_n(from, count * channels, to);
      return;
    }
    for (; count > 0; --count, from += step, to += pixel) std::copy_n(from, channels, to);
  }

  /// Outputs [output, last) of a group.
  void run_outputs(const View& view, int64_t group, int64_t output, int64_t last,
                   float* sums) const {
    while (output < last) {
      const int64_t vectors = Tile::vectors(last - output);
      run_tiles(view, group, output, last - output, vectors, sums);
      output += vectors * FloatVec::kCount;
    }
  }

  void run_tiles(const View& view, int64_t group, int64_t output, int64_t outputs, int64_t vectors,
                 float* sums) const {
    const int64_t block_stride = s_.inner() * kPackedOutputs, stride = vectors * FloatVec::kCount;
    const PackedWeights weights =
        weights_.from(group * packed_weight_elements(s_.outputs, s_.inner()) +
                      output / kPackedOutputs * block_stride);
    const int64_t first_output = group * s_.outputs + output, some = std::min(stride, outputs);
    const int64_t pixels = view.band.pixels(), chunks = ceil_div(pixels, kChunk);
    int64_t offsets[kChunk], at[kChunk];
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = chunk * pixels / chunks, count = (chunk + 1) * pixels / chunks - first;
      find_pixels(view, first, count, offsets, at);
      const Chunk pixels_of{view, view.x + group * s_.channels, first, count, offsets};
      const bool is_written = multiply(pixels_of, weights, output % kPackedOutputs, vectors,
                                       {first_output, some, at}, sums);
      if (!is_written) finish_.write_pixels(sums, stride, count, first_output, some, at);
    }
  }

  /// `elements` of each block that a tile reads.
  float* widen(const PackedWeights& weights, int64_t elements, int64_t outputs, float* to) const {
    const int64_t block_stride = s_.inner() * kPackedOutputs;
    for (int64_t block = 0; block * kPackedOutputs < outputs; ++block)
      widen_row(weights.half + block * block_stride, elements, to + block * elements);
    return to;
  }

  /// Finds a place of the windows of a chunk, in the image or in zeros; whether one is in the
  /// image.
  bool seek(const Chunk& chunk, int64_t place) const {
    const PatchAxis &rows = s_.row.patch, &columns = s_.column.patch;
    const ImageBand& band = chunk.view.band;
    const int64_t down = rows.offsets[static_cast<size_t>(place / columns.places())];
    const int64_t right = columns.offsets[static_cast<size_t>(place % columns.places())];
    const int64_t zeros =
        (reinterpret_cast<intptr_t>(chunk.view.zeros) - reinterpret_cast<intptr_t>(chunk.x)) /
        static_cast<int64_t>(sizeof(float));
    int64_t row = chunk.first / band.columns, column = chunk.first % band.columns;
    bool finds = false;
    for (int64_t i = 0; i < chunk.count; ++i) {
      const int64_t line = (band.row + row) * rows.stride + down;
      const int64_t pixel = (band.column + column) * columns.stride + right;
      const bool is_inside = line >= 0 && line < rows.in && pixel >= 0 && pixel < columns.in;
      chunk.offsets[i] = is_inside ? line * s_.x_row + pixel * s_.x_pixel : zeros;
      finds = finds || is_inside;
      if (++column < band.columns) continue;
      column = 0;
      ++row;
    }
    return finds;
  }

  /// Sums of pixels [pixels, outputs]; whether their results are written already. The outputs
  /// begin `inside` of the first block of weights.
  bool multiply(const Chunk& chunk, PackedWeights weights, int64_t inside, int64_t vectors,
                const LastPixelTile::Place& place, float* sums) const {
    const int64_t stride = vectors * FloatVec::kCount;
    // Tiles of equal height: one of two pixels would take nearly as long as one of all.
    const int64_t tiles = ceil_div(chunk.count, Tile::pixels(vectors));
    const int64_t height = chunk.count / tiles, higher = chunk.count % tiles;
    const bool puts = finish_.can_put() && !s_.seeks_pixels;  // else the last piece may be skipped
    const float* x = chunk.x;
    const int64_t* offsets = chunk.offsets;
    bool adds = false;
    for (const SumPiece& piece : s_.pieces) {
      const int64_t elements = piece.runs * piece.length * kPackedOutputs;
      if (s_.seeks_pixels && !seek(chunk, piece.first_run)) {
        weights = weights.from(elements);
        continue;
      }
      const float* w = weights.wide;
      int64_t block_stride = s_.inner() * kPackedOutputs;
      if (s_.half_weights) {
        w = widen(weights, elements, inside + stride, sums + kSums);
        block_stride = elements;
      }
      w += inside;
      const bool is_last = puts && &piece == &s_.pieces.back();
      for (int64_t tile = 0, first = 0, count = 0; tile < tiles; ++tile, first += count) {
        if (tiles > 1)  // all at once would be too many
          weights.prefetch(elements, elements, tiles, tile);
        count = height + (tile < higher ? 1 : 0);
        float* to = sums + first * stride;
        if (is_last)
          LastPixelTile::function(count, vectors)(x, offsets + first, s_.runs.data(), piece, w,
                                                  block_stride, adds ? to : nullptr, finish_,
                                                  {place.output, place.outputs, place.at + first});
        else
          Tile::function(count, vectors)(x, offsets + first, s_.runs.data(), piece, w, block_stride,
                                         to, adds);
      }
      weights = weights.from(elements);
      adds = true;
    }
    if (!adds) std::fill_n(sums, chunk.count * stride, 0.0f);
    return puts && adds;
  }

  /// Where the windows of pixels [first, first + count) of a band begin, and the pixels in y.
  void find_pixels(const View& view, int64_t first, int64_t count, int64_t* offsets,
                   int64_t* at) const {
    const ImageBand& band = view.band;
    const int64_t down = s_.row.hop * s_.line_elements, right = s_.column.hop * s_.pixel_stride;
    const int64_t outputs = s_.groups * s_.outputs;
    const int64_t begin = view.image * s_.y_pixels + s_.y_first + band.row * s_.y_row_step +
                          band.column * s_.y_column_step;
    int64_t row = first / band.columns, column = first % band.columns;
    for (int64_t i = 0; i < count; ++i) {
      offsets[i] = row * down + column * right;
      at[i] = (begin + row * s_.y_row_step + column * s_.y_column_step) * outputs;
      if (++column < band.columns) continue;
      column = 0;
      ++row;
    }
  }

  const ConvShape& s_;
  const float* x_;
  const PackedWeights weights_;
  const ConvFinish<float>& finish_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
