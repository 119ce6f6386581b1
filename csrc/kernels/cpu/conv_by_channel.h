// A convolution of each channel with a window of its own (depthwise), of images whose channels lie
// side by side. Some channels of a band are laid out with zeros beside the image, so that pixels
// lie a known distance apart; each is read once for all neighbouring outputs of a line that see it.
#pragma once

#include "kernels/cpu/conv_finish.h"
#include "kernels/cpu/conv_tile.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Neighbouring outputs of some lines, of a vector of channels.
struct ChannelTile {
  using V = FloatVec;
  static constexpr int kMostPixels = 8;
  /// Elements between neighbouring pixels of a band.
  static constexpr int64_t kPixel = kPackedOutputs;

  /// A window: its weights [rows, columns, kPixel], and where its places lie in the band.
  struct Window {
    const float* weights = nullptr;
    int64_t rows = 0, columns = 0;
    const int64_t *row_offsets = nullptr, *column_offsets = nullptr;
  };
  /// `count` lines of outputs: steps of x and y from one to the next, and between pixels.
  struct Lines {
    int64_t count = 1;
    int64_t x_line = 0, x_pixel = 0, y_line = 0, y_pixel = 0;
  };
  /// What follows the sums.
  struct Clip {
    V term{0.0f};
    V low{-std::numeric_limits<float>::infinity()};
    float high = std::numeric_limits<float>::infinity();
  };

  /// y = clip(sums + term) of kPixels outputs; the window has kWidth neighbouring columns and
  /// outputs are kStep apart, or any if these are 0.
  template <int kWidth, int kStep, int kPixels>
  static void run(const float* x, const Window& given, const Lines& lines, const Clip& clip,
                  float* y) {
    const Window window = given;  // which no result overwrites
    const int64_t x_line = lines.x_line, x_pixel = lines.x_pixel, y_line = lines.y_line,
                  y_pixel = lines.y_pixel;
    const V term = clip.term, low = clip.low;
    const float high = clip.high;
    for (int64_t left = lines.count; left > 0; --left, x += x_line, y += y_line) {
      V total[kPixels];
      ORTM_UNROLL
      for (int p = 0; p < kPixels; ++p) total[p] = V(0.0f);
      const float* weights = window.weights;
      for (int64_t r = 0; r < window.rows; ++r) {
        const float* line = x + window.row_offsets[r];
        if constexpr (kWidth > 0) {
          add_line<kWidth, kStep>(line, weights, total);
          weights += kWidth * kPixel;
        } else {
          for (int64_t k = 0; k < window.columns; ++k, weights += kPixel) {
            const V weight = V::load(weights);
            const float* from = line + window.column_offsets[k];
            ORTM_UNROLL
            for (int p = 0; p < kPixels; ++p)
              total[p] = multiply_add(V::load(from + p * x_pixel), weight, total[p]);
          }
        }
      }
      ORTM_UNROLL
      for (int p = 0; p < kPixels; ++p)
        at_most(larger(low, total[p] + term), high).store(y + p * y_pixel);
    }
  }

  /// Where neighbouring outputs of a line find their windows in an image: rows and columns of x,
  /// and elements between them. The first outputs see (row, column) + the offsets of the window.
  struct Places {
    const PatchAxis *rows = nullptr, *columns = nullptr;
    int64_t row = 0, column = 0, x_row = 0, x_pixel = 0;
  };

  /// The same sums of kPixels outputs, from the image as it lies; what lies beside it is left out.
  template <int kPixels>
  static void seek(const float* x, const float* weights, const Places& at, V (&total)[kPixels]) {
    const PatchAxis &rows = *at.rows, &columns = *at.columns;
    const int64_t step = columns.stride * at.x_pixel;
    for (int64_t row_offset : rows.offsets) {
      const int64_t line = at.row + row_offset;
      const bool sees_line = line >= 0 && line < rows.in;
      for (int64_t column_offset : columns.offsets) {
        const V weight = V::load(weights);
        weights += kPixel;
        const int64_t first = at.column + column_offset;
        const int64_t last = first + (kPixels - 1) * columns.stride;
        if (!sees_line || last < 0 || first >= columns.in) continue;
        const float* from = x + line * at.x_row + first * at.x_pixel;
        if (first >= 0 && last < columns.in) {
          ORTM_UNROLL
          for (int p = 0; p < kPixels; ++p)
            total[p] = multiply_add(V::load(from + p * step), weight, total[p]);
        } else {
          ORTM_UNROLL
          for (int p = 0; p < kPixels; ++p) {
            const int64_t pixel = first + p * columns.stride;
            if (pixel >= 0 && pixel < columns.in)
              total[p] = multiply_add(V::load(from + p * step), weight, total[p]);
          }
        }
      }
    }
  }

  /// sums [kPixels, kPixel] of a vector of channels.
  template <int kPixels>
  static void run_sought(const float* x, const float* weights, const Places& at, float* sums) {
    V total[kPixels];
    ORTM_UNROLL
    for (int p = 0; p < kPixels; ++p) total[p] = V(0.0f);
    seek<kPixels>(x, weights, at, total);
    ORTM_UNROLL
    for (int p = 0; p < kPixels; ++p) total[p].store(sums + p * kPixel);
  }

  using RunSought = void (*)(const float*, const float*, const Places&, float*);
  static RunSought sought_function(int64_t pixels) {
    static constexpr auto kFunctions = []<int... i>(std::integer_sequence<int, i...>) {
      return std::array<RunSought, sizeof...(i)>{&run_sought<i + 1>...};
    }
    (std::make_integer_sequence<int, kMostPixels>());
    return kFunctions[static_cast<size_t>(pixels - 1)];
  }

  using Run = void (*)(const float*, const Window&, const Lines&, const Clip&, float*);
  /// The functions for windows of so many neighbouring columns (0: any) and outputs that step on by
  /// so many pixels, by the number of outputs less one.
  static const std::array<Run, kMostPixels>& functions(int64_t width, int64_t step) {
    if (step == 1 && width == 3) return all<3, 1>();
    if (step == 1 && width == 5) return all<5, 1>();
    if (step == 1 && width == 7) return all<7, 1>();
    if (step == 2 && width == 3) return all<3, 2>();
    if (step == 2 && width == 5) return all<5, 2>();
    return all<0, 0>();
  }

 private:
  /// A line of the window: each pixel is loaded once.
  template <int kWidth, int kStep, int kPixels>
  static void add_line(const float* line, const float* weights, V (&total)[kPixels]) {
    V weight[kWidth];
    ORTM_UNROLL
    for (int k = 0; k < kWidth; ++k) weight[k] = V::load(weights + k * kPixel);
    ORTM_UNROLL
    for (int j = 0; j < (kPixels - 1) * kStep + kWidth; ++j) {
      const V value = V::load(line + j * kPixel);
      ORTM_UNROLL
      for (int p = 0; p < kPixels; ++p) {
        const int k = j - p * kStep;
        if (k >= 0 && k < kWidth) total[p] = multiply_add(value, weight[k], total[p]);
      }
    }
  }

  template <int kWidth, int kStep>
  static const std::array<Run, kMostPixels>& all() {
    static constexpr auto kFunctions = []<int... i>(std::integer_sequence<int, i...>) {
      return std::array<Run, sizeof...(i)>{&run<kWidth, kStep, i + 1>...};
    }
    (std::make_integer_sequence<int, kMostPixels>());
    return kFunctions;
  }
};

class ConvByChannel {
 public:
  using V = FloatVec;
  using Tile = ChannelTile;

  /// `weights` are packed in blocks of channels.
  ConvByChannel(const ConvShape& s, const float* x, const float* weights,
                const ConvFinish<float>& finish)
      : s_(s), x_(x), weights_(weights), finish_(finish) {
    const int64_t columns = s.column.places();
    const bool neighbours = s.column.place(columns - 1) == columns - 1;
    functions_ = &Tile::functions(neighbours ? columns : 0, s.column.hop);
  }

  /// Bands of all channels, whose blocks are divided into parts.
  static int64_t units(const ConvShape& s) { return s.images * s.bands() * s.parts; }
  /// Elements of scratch of a thread: a band and the sums of a line.
  static int64_t scratch_elements(const ConvShape& s) {
    return s.band_elements + s.band_columns * Tile::kPixel;
  }

  /// Units [begin, end).
  void run(int64_t begin, int64_t end, float* scratch) const {
    const int64_t blocks = ceil_div(s_.groups, kPackedOutputs);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t part = unit % s_.parts, index = unit / s_.parts;
      const ImageBand band = s_.band(index % s_.bands());
      const int64_t image = index / s_.bands(), last = (part + 1) * blocks / s_.parts;
      for (int64_t block = part * blocks / s_.parts; block < last; ++block) {
        const int64_t channel = block * kPackedOutputs;
        const int64_t lanes = std::min(kPackedOutputs, s_.groups - channel);
        if (s_.seeks_pixels) {
          for (int64_t lane = 0; lane < lanes; lane += V::kCount)
            seek_vector(image, band, channel + lane, scratch);
          continue;
        }
        lay_out(band, x_ + image * s_.x_image + channel, lanes, scratch);
        for (int64_t lane = 0; lane < lanes; lane += V::kCount)
          run_vector(image, band, channel + lane, std::min(V::kCount, lanes - lane), scratch + lane,
                     scratch + s_.band_elements);
      }
    }
  }

 private:
  /// `lanes` channels of a band, which lies at `x`.
  void run_vector(int64_t image, const ImageBand& band, int64_t channel, int64_t lanes,
                  const float* x, float* sums) const {
    const int64_t places = s_.patches.places, block = channel / kPackedOutputs;
    const Tile::Window window{weights_ + block * places * kPackedOutputs + channel % kPackedOutputs,
                              s_.row.places(), s_.column.places(), s_.runs.data(),
                              s_.places.data()};
    const int64_t x_line = s_.row.hop * s_.line_elements, x_pixel = s_.column.hop * Tile::kPixel;
    const int64_t first = image * s_.patches.pixels + s_.first_pixel(band);
    const int64_t out = s_.column.patch.out;
    if (finish_.is_direct() && lanes == V::kCount) {
      const Tile::Clip clip{finish_.terms(channel, lanes), V(finish_.low()), finish_.high()};
      return run_tiles(x, window, {band.rows, x_line, x_pixel, out * s_.groups, s_.groups}, clip,
                       band.columns, finish_.y() + first * s_.groups + channel);
    }
    for (int64_t row = 0; row < band.rows; ++row) {
      run_tiles(x + row * x_line, window, {1, x_line, x_pixel, 0, Tile::kPixel}, Tile::Clip(),
                band.columns, sums);
      write_line(sums, band.columns, first + row * out, channel, lanes);
    }
  }

  /// A vector of channels, read where the image lies.
  void seek_vector(int64_t image, const ImageBand& band, int64_t channel, float* sums) const {
    const PatchAxis &rows = s_.row.patch, &columns = s_.column.patch;
    const float* x = x_ + image * s_.x_image + channel;
    const float* weights = weights_ +
                           channel / kPackedOutputs * s_.patches.places * kPackedOutputs +
                           channel % kPackedOutputs;
    const int64_t first = image * s_.patches.pixels + s_.first_pixel(band);
    for (int64_t row = 0; row < band.rows; ++row) {
      int64_t tiles = ceil_div(band.columns, int64_t{Tile::kMostPixels});
      for (int64_t column = 0, count = 0; tiles > 0; --tiles, column += count) {
        count = ceil_div(band.columns - column, tiles);
        const Tile::Places at{&rows,
                              &columns,
                              (band.row + row) * rows.stride,
                              (band.column + column) * columns.stride,
                              s_.x_row,
                              s_.x_pixel};
        Tile::sought_function(count)(x, weights, at, sums + column * Tile::kPixel);
      }
      write_line(sums, band.columns, first + row * columns.out, channel, V::kCount);
    }
  }

  /// Results of a line of sums, from pixel `first` of y on.
  void write_line(const float* sums, int64_t columns, int64_t first, int64_t channel,
                  int64_t lanes) const {
    constexpr int64_t kChunk = 64;
    int64_t at[kChunk];
    for (int64_t column = 0; column < columns; column += kChunk) {
      const int64_t count = std::min(kChunk, columns - column);
      for (int64_t i = 0; i < count; ++i) at[i] = (first + column + i) * s_.groups;
      finish_.write_pixels(sums + column * Tile::kPixel, Tile::kPixel, count, channel, lanes, at);
    }
  }

  /// Tiles of nearly equal width.
  void run_tiles(const float* x, const Tile::Window& window, const Tile::Lines& lines,
                 const Tile::Clip& clip, int64_t columns, float* y) const {
    int64_t tiles = ceil_div(columns, int64_t{Tile::kMostPixels});
    for (; tiles > 0; --tiles) {
      const int64_t count = ceil_div(columns, tiles);
      (*functions_)[static_cast<size_t>(count - 1)](x, window, lines, clip, y);
      x += count * lines.x_pixel;
      y += count * lines.y_pixel;
      columns -= count;
    }
  }

  /// `lanes` channels of what the band sees, from the image's element `x` on.
  void lay_out(const ImageBand& band, const float* x, int64_t lanes, float* to) const {
    constexpr int64_t kPixel = Tile::kPixel;
    const int64_t count = s_.column.span(band.columns), left = s_.column.origin(band.column);
    const auto [first, last] = s_.inside(left, count);
    const int64_t step = s_.column.step * s_.x_pixel;
    s_.for_each_line(band, [&, first = first, last = last](int64_t line, int64_t at) {
      const int64_t begin = at < 0 ? count : first, end = at < 0 ? count : last;
      float* target = to + line * s_.line_elements;
      std::fill_n(target, begin * kPixel, 0.0f);
      copy_pixels(x + at * s_.x_row + left * s_.x_pixel + begin * step, step, end - begin, lanes,
                  target + begin * kPixel);
      std::fill_n(target + end * kPixel, (count - end) * kPixel, 0.0f);
    });
  }

  /// `lanes` channels of pixels that lie `step` apart, with zeros for further ones.
  static void copy_pixels(const float* from, int64_t step, int64_t count, int64_t lanes,
                          float* to) {
    constexpr int64_t kPixel = Tile::kPixel;
    for (; count > 0; --count, from += step, to += kPixel) {
      // Of the next block of channels, for which the processor would wait again at each pixel.
      __builtin_prefetch(from + kPixel, 0, 2);
      if (lanes == kPixel) {
        ORTM_UNROLL
        for (int64_t i = 0; i < kPixel; i += V::kCount) V::load(from + i).store(to + i);
      } else {
        std::copy_n(from, lanes, to);
        std::fill_n(to + lanes, kPixel - lanes, 0.0f);
      }
    }
  }

  const ConvShape& s_;
  const float* x_;
  const float* weights_;
  const ConvFinish<float>& finish_;
  const std::array<Tile::Run, Tile::kMostPixels>* functions_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
