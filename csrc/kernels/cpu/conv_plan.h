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

inline void split_axes(ConvShape& s) {
  std::vector<BandAxis> axes;
  for (const PatchAxis& axis : s.patches.axes) {
    const bool trivial =
        axis.in == 1 && axis.out == 1 && axis.places() == 1 && axis.offsets.front() == 0;
    if (!trivial) axes.emplace_back(axis);
  }
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
  if (s.method == ConvMethod::Product) return s.column.span(columns) * s.pixel_stride;
  const int64_t reach = s.column.place(s.column.places() - 1) / s.column.hop;
  return s.column.hop * whole_vectors<C>(whole_vectors<C>(columns) + reach);
}

/// Bands whose memory stays in the second-level cache, and enough of them for all threads.
template <class C>
void cut_bands(ConvShape& s, int64_t threads) {
  const bool lines = s.method == ConvMethod::Lines;
  const int64_t most_bytes = (lines && s.channels == 1 ? 40 : 160) << 10;
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
  const int64_t wanted = threads == 1 ? 1 : 2 * threads;
  const auto units = [&] {
    s.row_bands = ceil_div(rows, s.band_rows);
    s.column_bands = ceil_div(columns, s.band_columns);
    return s.images * s.groups * s.bands();
  };
  constexpr int64_t kFewPixels = 48;
  while (units() < wanted && s.band_rows > 1 && s.band_rows * columns > kFewPixels)
    s.band_rows = half(s.band_rows);
  if (!lines)
    s.parts = std::clamp<int64_t>(ceil_div(wanted, std::max<int64_t>(1, units())), 1,
                                  ceil_div(s.outputs, ConvTile<C>::kOutputs));
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
      s.pixel_stride == s.channels && column.place(column.places() - 1) == column.places() - 1;
  s.run_length = s.channels * (joined ? column.places() : 1);
  for (int64_t o = 0; o < s.outer_places; ++o)
    for (int64_t r = 0; r < row.places(); ++r)
      for (int64_t c = 0; c < (joined ? 1 : column.places()); ++c)
        s.runs.push_back((o * s.row_span + row.place(r)) * s.line_elements +
                         column.place(c) * s.pixel_stride);
  const auto runs = static_cast<int64_t>(s.runs.size());
  if (s.run_length > kMostInner) {
    const int64_t cuts = ceil_div(s.run_length, kMostInner);
    for (int64_t r = 0; r < runs; ++r)
      for (int64_t i = 0; i < cuts; ++i) {
        const int64_t begin = i * s.run_length / cuts;
        s.pieces.push_back({r, 1, begin, (i + 1) * s.run_length / cuts - begin});
      }
  } else if (s.run_length > 0) {
    const int64_t cuts = ceil_div(runs, kMostInner / s.run_length);
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

}  // namespace conv_plan

/// Fills in what follows from sizes and `patches`. C is the type of the sums.
template <class C>
void plan_convolution(ConvShape& s, int64_t threads) {
  using namespace conv_plan;
  if (s.patches.pixels == 0 || s.patches.places == 0 || s.images == 0) return;
  split_axes(s);
  s.method = method_of<C>(s);
  // Pixels of a tile that lie a multiple of 1 KiB apart would share sets of cache lines.
  s.pixel_stride = s.channels + (s.channels * s.column.hop % 256 == 0 ? 16 : 0);
  cut_bands<C>(s, threads);
  if (s.method == ConvMethod::Product) cut_sum(s);
  if (s.method == ConvMethod::Lines) {
    s.phase_elements = s.line_elements / s.column.hop;
    find_places(s);
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
