// Chooses method, bands and pieces of a convolution from its sizes (conv_shape.h). Bands depend on
// the number of threads, sums do not.
#pragma once

#include "kernels/cpu/conv_shape.h"
#include "kernels/cpu/conv_tile.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Most outputs that Lines computes together.
inline constexpr int64_t kMostLineOutputs = 4;

namespace conv_plan {

/// Whether all that the dimension has is one position.
inline bool is_trivial(const PatchAxis& axis) {
  return axis.in == 1 && axis.out == 1 && axis.places() == 1 && axis.offsets.front() == 0;
}

inline void split_axes(ConvShape& s) {
  std::vector<BandAxis> axes;
  for (const PatchAxis& axis : s.patches.axes)
    if (!is_trivial(axis)) axes.emplace_back(axis);
  if (!axes.empty()) {
    s.column = axes.back();
    axes.pop_back();
  }
  if (!axes.empty()) {
    s.row = axes.back();
    axes.pop_back();
  }
  for (const BandAxis& axis : axes) {
    s.outer_outputs *= axis.patch.out;
    s.outer_places *= axis.places();
  }
  s.outer = std::move(axes);
}

template <class C>
ConvMethod method_of(const ConvShape& s) {
  const int64_t columns = s.column.patch.out, lanes = kVecCount<C>;
  if (s.outputs <= kMostLineOutputs) {
    // The part of the lanes that is used, by either.
    const bool lines_use_more = columns * lanes >= s.outputs * whole_vectors<C>(columns);
    if (s.channels == 1 || lines_use_more) return ConvMethod::Lines;
  }
  constexpr int64_t kFewPixels = 32;
  return s.patches.is_image() && s.patches.pixels >= kFewPixels ? ConvMethod::Image
                                                                : ConvMethod::Product;
}

/// Elements of a line of so many outputs.
template <class C>
int64_t line_elements(const ConvShape& s, int64_t columns) {
  if (s.method == ConvMethod::Product)
    return s.column.parts() * s.column.span(columns) * s.pixel_stride;
  const int64_t reach = s.column.reach() / s.column.hop;
  return s.column.hop * whole_vectors<C>(whole_vectors<C>(columns) + reach);
}

/// Bytes of a band that stays in the second-level cache. In smaller ones a product reads the
/// weights from further away, again and again.
inline int64_t band_bytes(const ConvShape& s) {
  if (s.method != ConvMethod::Lines) return 384 << 10;
  return (s.channels == 1 ? 40 : 160) << 10;
}

/// Whether less is laid out if each place of the axis is a part of its own, in bands of at most
/// `most` positions.
inline bool has_far_places(const BandAxis& axis, int64_t most) {
  const int64_t places = axis.places(), reach = axis.reach();
  if (places == 1 || reach < places) return false;
  const int64_t outputs = std::min(axis.patch.out, (most - reach) / axis.hop);
  return outputs <= 0 || axis.span(outputs) > places * outputs;
}

/// For windows whose places lie far apart (dilated ones). Of rows, the places become outer ones.
template <class C>
void lay_places_apart(ConvShape& s) {
  const auto bytes = static_cast<int64_t>(sizeof(C));
  const int64_t most = band_bytes(s) / (bytes * s.channels * s.outer_places);
  if (has_far_places(s.row, most / std::max<int64_t>(1, s.column.patch.out))) {
    s.outer_outputs *= s.row.patch.out;
    s.outer_places *= s.row.places();
    s.outer.push_back(std::exchange(s.row, BandAxis()));
  }
  const int64_t lines = s.row.span(1) * s.outer_places;
  if (has_far_places(s.column, band_bytes(s) / (bytes * s.channels * lines))) s.column.set_apart();
}

constexpr int64_t kFewPixels = 48;  // of a band that is not cut for more threads

/// More bands for all threads, or units of some outputs of a band.
template <class C>
void share_bands(ConvShape& s, int64_t threads) {
  const int64_t wanted = threads == 1 ? 1 : 2 * threads;
  const auto units = [&] { return s.planes() * s.bands(); };
  while (units() < wanted && s.band_rows > 1 && s.band_rows * s.column.patch.out > kFewPixels) {
    s.band_rows = ceil_div(s.band_rows, 2);
    s.row_bands = ceil_div(s.row.patch.out, s.band_rows);
  }
  if (s.method != ConvMethod::Lines)
    s.parts = std::clamp<int64_t>(ceil_div(wanted, std::max<int64_t>(1, units())), 1,
                                  ceil_div(s.outputs, ConvTile<C>::kOutputs));
}

/// A unit of some outputs of a band for each thread, and more bands where the outputs do not divide
/// well: each thread then has whole bands, and at most one that it shares.
template <class C>
void share_parts(ConvShape& s, int64_t threads) {
  const int64_t items = is_by_channel(s) ? ceil_div(s.groups, kPackedOutputs)
                        : s.groups > 1   ? s.groups
                                         : ceil_div(s.outputs, ConvTile<C>::kOutputs);
  const int64_t rows = s.row.patch.out;
  const auto pixels = [&] { return ceil_div(rows, s.row_bands) * s.band_columns; };
  s.parts = std::min(threads, items);
  while (s.planes() * s.bands() * s.parts < threads && s.row_bands < rows && pixels() > kFewPixels)
    s.row_bands = std::min(rows, 2 * s.row_bands);
  constexpr int64_t kManyItems = 8;  // for each thread
  const bool divides = items % threads == 0 || items >= kManyItems * threads;
  if (divides || s.planes() * s.bands() % threads == 0) return;
  const int64_t more = ceil_div(s.row_bands, threads) * threads;
  if (more <= rows) s.row_bands = more;
}

/// Bands of at most so much memory, and enough of them for all threads.
template <class C>
void cut_bands(ConvShape& s, int64_t most_bytes, int64_t threads) {
  const bool lines = s.method == ConvMethod::Lines;
  const int64_t channels = lines ? s.channels : 1;
  const int64_t rows = s.row.patch.out, columns = s.column.patch.out;
  const auto elements = [&](int64_t some_rows, int64_t some_columns) {
    return channels * s.outer_places * s.row.span(some_rows) * line_elements<C>(s, some_columns);
  };
  const auto fits = [&](int64_t some_rows, int64_t some_columns) {
    return elements(some_rows, some_columns) * static_cast<int64_t>(sizeof(C)) <= most_bytes;
  };
  const auto half = [](int64_t count) { return ceil_div(count, 2); };
  const int64_t few_columns = lines ? 128 : 12;
  s.band_rows = rows;
  s.band_columns = columns;
  while (s.band_rows > 1 && !fits(s.band_rows, columns)) s.band_rows = half(s.band_rows);
  while (s.band_rows == 1 && s.band_columns > few_columns && !fits(1, s.band_columns))
    s.band_columns = half(s.band_columns);
  s.row_bands = ceil_div(rows, s.band_rows);
  s.column_bands = ceil_div(columns, s.band_columns);
  s.is_pixel_major ? share_parts<C>(s, threads) : share_bands<C>(s, threads);
  s.band_rows = ceil_div(rows, s.row_bands);
  s.row_span = s.row.span(s.band_rows);
  s.line_elements = line_elements<C>(s, s.band_columns);
  s.band_elements = elements(s.band_rows, s.band_columns);
}

/// Pieces of a few hundred elements, whose weights stay in the first-level cache.
inline void cut_sum(ConvShape& s) {
  constexpr int64_t kMostInner = 256;
  const BandAxis &row = s.row, &column = s.column;
  // Places of a line that are neighbours are one run.
  const bool joined =
      s.pixel_stride == s.channels && !s.seeks_pixels && column.reach() == column.places() - 1;
  s.run_length = s.channels * (joined ? column.places() : 1);
  for (int64_t o = 0; o < s.outer_places; ++o)
    for (int64_t r = 0; r < row.places(); ++r)
      for (int64_t c = 0; c < (joined ? 1 : column.places()); ++c)
        s.runs.push_back(
            s.seeks_pixels ? 0 : (o * s.row_span + row.place(r)) * s.line_elements + s.place_at(c));
  const auto runs = static_cast<int64_t>(s.runs.size());
  if (s.run_length > kMostInner) {
    const int64_t cuts = ceil_div(s.run_length, kMostInner);
    for (int64_t r = 0; r < runs; ++r)
      for (int64_t i = 0; i < cuts; ++i) {
        const int64_t begin = i * s.run_length / cuts;
        s.pieces.push_back({r, 1, begin, (i + 1) * s.run_length / cuts - begin});
      }
  } else if (s.run_length > 0) {
    const int64_t cuts = s.seeks_pixels ? runs : ceil_div(runs, kMostInner / s.run_length);
    for (int64_t i = 0; i < cuts; ++i) {
      const int64_t first = i * runs / cuts;
      s.pieces.push_back({first, (i + 1) * runs / cuts - first, 0, s.run_length});
    }
  }
}

/// Where in a band of lines the places of a window begin.
inline void find_places(ConvShape& s) {
  const int64_t hop = s.column.hop;
  for (int64_t o = 0; o < s.outer_places; ++o)
    for (int64_t r = 0; r < s.row.places(); ++r)
      for (int64_t c = 0; c < s.column.places(); ++c) {
        const int64_t at = s.column.place(c);
        s.places.push_back((o * s.row_span + s.row.place(r)) * s.line_elements +
                           at % hop * s.phase_elements + at / hop);
      }
}

/// The axes of images of pixels, x of this layout, and the distances along them in x and y.
inline void split_pixels(ConvShape& s, const Layout& x) {
  s.is_pixel_major = true;
  split_axes(s);
  const bool is_column = is_trivial(s.patches.axes[1]);  // of rows alone
  s.x_image = x.strides[0];
  s.x_row = x.strides[2];
  s.x_pixel = x.strides[is_column ? 2 : 3];
  if (s.y_pixels == 0) {
    s.y_pixels = s.patches.pixels;
    s.y_row_step = s.column.patch.out;
  } else if (is_column) {
    s.y_column_step = s.y_row_step;
  }
}

/// Whether every window along the dimension lies in the image.
inline bool stays_inside(const PatchAxis& axis) {
  return axis.offsets.front() >= 0 && (axis.out - 1) * axis.stride + axis.offsets.back() < axis.in;
}

inline bool stays_inside(const ConvShape& s) {
  return stays_inside(s.row.patch) && stays_inside(s.column.patch);
}

/// Whether places of a window lie apart.
inline bool has_gaps(const PatchAxis& axis) {
  return axis.places() > 1 && axis.offsets[1] - axis.offsets[0] > 1;
}

/// Whether windows with gaps reach beyond the image.
inline bool has_gaps_beside(const ConvShape& s) {
  return !stays_inside(s) && (has_gaps(s.row.patch) || has_gaps(s.column.patch));
}

}  // namespace conv_plan

/// Fills in what follows from sizes and `patches`. C is the type of the sums.
template <class C>
void plan_convolution(ConvShape& s, int64_t threads) {
  using namespace conv_plan;
  if (s.patches.pixels == 0 || s.patches.places == 0 || s.images == 0) return;
  split_axes(s);
  s.method = method_of<C>(s);
  if (s.method == ConvMethod::Product && s.channels > 0) lay_places_apart<C>(s);
  // Pixels of a tile that lie a multiple of 1 KiB apart would share sets of cache lines.
  s.pixel_stride = s.channels + (s.channels * s.column.hop % 256 == 0 ? 16 : 0);
  cut_bands<C>(s, band_bytes(s), threads);
  if (s.method == ConvMethod::Product) cut_sum(s);
  if (s.method == ConvMethod::Lines) {
    s.phase_elements = s.line_elements / s.column.hop;
    find_places(s);
  }
}

/// The same of images of pixels, x of this layout. Results follow one another in y, unless the
/// shape says where.
inline void plan_pixels(ConvShape& s, const Layout& x, int64_t threads) {
  using namespace conv_plan;
  if (s.patches.pixels == 0 || s.patches.places == 0 || s.images == 0) return;
  split_pixels(s, x);
  const int64_t channels = s.groups * s.channels;
  // Pixels of a tile that lie a multiple of a page apart would share sets of cache lines.
  constexpr int64_t kPage = 1024;
  constexpr int64_t kFewChannels = 64;  // which are multiplied faster than places are sought
  s.seeks_pixels = has_gaps_beside(s) && s.channels >= kFewChannels;
  s.in_place =
      s.seeks_pixels || (stays_inside(s) && s.x_pixel * s.column.patch.stride % kPage != 0);
  if (s.in_place)
    for (BandAxis* axis : {&s.row, &s.column}) {
      axis->step = 1;
      axis->hop = axis->patch.stride;
    }
  s.pixel_stride = s.in_place ? s.x_pixel : channels;
  if (!s.in_place && channels * s.column.hop % 256 == 0) s.pixel_stride += 16;
  cut_bands<float>(s, s.seeks_pixels ? std::numeric_limits<int64_t>::max() : band_bytes(s),
                   threads);
  if (s.in_place) {
    // Nothing is laid out again where bands meet, so that results may stay in that cache, too.
    const int64_t pixel_bytes = (channels + s.groups * s.outputs) * int64_t{sizeof(float)};
    constexpr int64_t kMostBytes = 512 << 10;
    while (s.band_rows > 1 && s.band_rows * s.band_columns * pixel_bytes > kMostBytes) {
      s.row_bands = std::min(s.row.patch.out, 2 * s.row_bands);
      s.band_rows = ceil_div(s.row.patch.out, s.row_bands);
    }
    s.line_elements = s.x_row;
    s.band_elements = 0;
  }
  cut_sum(s);
  if (s.in_place && s.patches.places == 1)  // the pixels of the next tile
    for (SumPiece& piece : s.pieces)
      piece.ahead = ConvTile<float>::kMostPixels * s.column.hop * s.x_pixel;
}

/// The same of windows of one channel each.
inline void plan_channels(ConvShape& s, const Layout& x, int64_t threads) {
  using namespace conv_plan;
  if (s.patches.pixels == 0 || s.patches.places == 0 || s.images == 0) return;
  split_pixels(s, x);
  s.pixel_stride = kPackedOutputs;
  // A layout with the gaps in it is faster while it is not much larger than the image.
  constexpr int64_t kMuchLarger = 3;
  const PatchAxis &rows = s.row.patch, &columns = s.column.patch;
  s.seeks_pixels =
      has_gaps_beside(s) && s.groups % kPackedOutputs == 0 &&
      s.row.span(rows.out) * s.column.span(columns.out) >= kMuchLarger * rows.in * columns.in;
  constexpr int64_t kMostBytes = 128 << 10;  // of the channels that are worked on together
  cut_bands<float>(s, s.seeks_pixels ? std::numeric_limits<int64_t>::max() : kMostBytes, threads);
  if (s.seeks_pixels) s.band_elements = 0;
  for (int64_t r = 0; r < s.row.places(); ++r) s.runs.push_back(s.row.place(r) * s.line_elements);
  for (int64_t c = 0; c < s.column.places(); ++c)
    s.places.push_back(s.column.place(c) * s.pixel_stride);
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
