// A convolution of few outputs per group (depthwise ones above all), with vectors of neighbouring
// pixels: the places of a window are shifts of lines that are laid out with zeros at their ends.
#pragma once

#include <utility>

#include "kernels/cpu/conv_band.h"
#include "kernels/cpu/conv_finish.h"
#include "kernels/cpu/conv_plan.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// W is the type of the weights.
template <class T, class W = T, class Finish = ConvFinish<T>>
class ConvLines {
 public:
  using C = ComputeOf<T>;
  using V = VecOf<C>;

  /// Element (output, channel, place) of a group's weights lies at the sum of its strides. Weights
  /// of `lanes` groups are neighbours.
  struct Weights {
    const W* data = nullptr;
    int64_t group = 0, output = 0, channel = 0, place = 0, lanes = 1;
  };

  ConvLines(const ConvShape& s, const T* x, const Weights& weights, const Finish& finish)
      : s_(s), x_(x), weights_(weights), finish_(finish) {}

  static int64_t units(const ConvShape& s) { return s.images * s.groups * s.bands(); }
  /// Elements of scratch of a thread.
  static int64_t scratch_elements(const ConvShape& s) {
    return band_elements(s) + weight_elements(s) +
           std::max<int64_t>(kMostRows, s.outputs) * line(s);
  }

  /// Units [begin, end).
  void run(int64_t begin, int64_t end, C* scratch) const {
    C* weights = scratch + band_elements(s_);
    C* sums = weights + weight_elements(s_);
    // All planes of a band one after the other, so that zeros beside the image are laid out once.
    const int64_t planes = s_.images * s_.groups;
    int64_t index = begin / planes, plane = begin % planes, group = plane % s_.groups;
    int64_t packed = -1, laid_out = -1;
    ImageBand band;
    bool is_inside = false;  // no line of the band is zeros
    for (int64_t unit = begin; unit < end; ++unit) {
      if (group != packed) pack(group, weights);
      packed = group;
      if (index != laid_out) {
        laid_out = index;
        const ImageBand last = std::exchange(band, s_.band(laid_out));
        const bool was_inside = std::exchange(is_inside, s_.is_inside(band));
        const bool same_zeros = was_inside && is_inside && last.column == band.column;
        if (!same_zeros) std::fill_n(scratch, band_elements(s_), C(0));
      }
      lay_out_lines<C>(s_, band, x_ + plane * s_.channels * s_.patches.in_pixels, scratch);
      const int64_t at = plane * s_.outputs * s_.patches.pixels + s_.first_pixel(band);
      s_.outputs == 1 ? run_lines(scratch, weights, group, at, band, sums)
                      : run_line_by_line(scratch, weights, group, at, band, sums);
      if (++group == s_.groups) group = 0;
      if (++plane < planes) continue;
      plane = 0;
      ++index;
    }
  }

 private:
  static int64_t band_elements(const ConvShape& s) {
    return ceil_div(s.band_elements, 16) * 16 + kBehindBand;
  }
  static int64_t weight_elements(const ConvShape& s) {
    return ceil_div(s.outputs * s.inner(), 16) * 16;
  }
  static int64_t line(const ConvShape& s) { return ceil_div(s.band_columns, 16) * 16; }

  /// [channels, places, outputs].
  void pack(int64_t group, C* to) const {
    const int64_t lanes = weights_.lanes;
    const W* from = weights_.data + group / lanes * weights_.group + group % lanes;
    for (int64_t channel = 0; channel < s_.channels; ++channel)
      for (int64_t place = 0; place < s_.patches.places; ++place)
        for (int64_t o = 0; o < s_.outputs; ++o)
          *to++ = computed(
              from[o * weights_.output + channel * weights_.channel + place * weights_.place]);
  }

  /// Where sums of lines go, a plane of y or memory of the thread.
  struct Target {
    C* data = nullptr;
    int64_t output_stride = 0;
  };
  Target target(int64_t at, C* sums) const {
    if constexpr (std::is_same_v<C, T>)
      if (finish_.is_direct()) return {finish_.y() + at, s_.patches.pixels};
    return {sums, line(s_)};
  }

  // --- one output: several lines at once, which share the weights ------------------------------
  static constexpr int kMostVectors = 6, kMostRows = 8;

  void run_lines(const C* x, const C* weights, int64_t group, int64_t at, const ImageBand& band,
                 C* sums) const {
    if (shares_lines(band)) return run_by_columns(x, weights, group, at, band, sums);
    if (has_nine_places()) return run_nine_places(x, weights, group, at, band, sums);
    const int64_t vectors = ceil_div(band.columns, V::kCount);
    const int64_t parts = ceil_div(vectors, kMostVectors);
    const int64_t rows = ceil_div(vectors, parts) == 1   ? kMostRows
                         : ceil_div(vectors, parts) <= 3 ? 4
                                                         : 2;
    for (int64_t row = 0; row < band.rows; row += rows) {
      const int64_t some = std::min(rows, band.rows - row);
      const C* from = x + row * s_.row.hop * s_.line_elements;
      const int64_t first = at + row * s_.column.patch.out;
      Target to = target(first, sums);
      to.output_stride = to.data == sums ? line(s_) : s_.column.patch.out;
      // What is written behind a line is written again with the next one.
      const bool spills = to.data == sums || (parts == 1 && s_.column_bands == 1);
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t begin = part * vectors / parts, end = (part + 1) * vectors / parts;
        const int64_t column = begin * V::kCount;
        const int64_t count = std::min(end * V::kCount, band.columns) - column;
        const C term = finish_.term(group);
        const auto run = [&]<int kVectors, int kRows> {
          multiply_lines<kVectors, kRows>(from + column, weights, term, some, count,
                                          {to.data + column, to.output_stride}, spills);
        };
        switch (end - begin) {
          case 1:
            rows == 8 ? run.template operator()<1, 8>() : run.template operator()<1, 4>();
            break;
          case 2: run.template operator()<2, 4>(); break;
          case 3:
            rows == 4 ? run.template operator()<3, 4>() : run.template operator()<3, 2>();
            break;
          case 4: run.template operator()<4, 2>(); break;
          case 5: run.template operator()<5, 2>(); break;
          default: run.template operator()<6, 2>(); break;
        }
      }
      if (to.data == sums)
        for (int64_t r = 0; r < some; ++r)
          finish_.write(sums + r * line(s_), first + r * s_.column.patch.out, band.columns);
    }
  }

  /// `rows` of kRows lines of `columns` outputs, at most kVectors vectors.
  template <int kVectors, int kRows>
  void multiply_lines(const C* x, const C* weights, C term, int64_t rows, int64_t columns,
                      const Target& to, bool spills) const {
    const int64_t down = s_.row.hop * s_.line_elements;
    const int64_t channel_elements = s_.line_count() * s_.line_elements;
    const C* lines[kRows];
    V sums[kRows][kVectors];
    ORTM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      lines[r] = x + std::min<int64_t>(r, rows - 1) * down;
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[r][v] = V(C(0));
    }
    const auto places = static_cast<int64_t>(s_.places.size());
    for (int64_t channel = 0; channel < s_.channels; ++channel)
      for (int64_t k = 0; k < places; ++k, ++weights) {
        const int64_t at = channel * channel_elements + s_.places[static_cast<size_t>(k)];
        const V weight(*weights);
        ORTM_UNROLL
        for (int r = 0; r < kRows; ++r) {
          ORTM_UNROLL
          for (int v = 0; v < kVectors; ++v)
            sums[r][v] = multiply_add(weight, V::load(lines[r] + at + v * V::kCount), sums[r][v]);
        }
      }
    const V terms(term);
    const int64_t whole = columns / V::kCount, rest = columns % V::kCount;
    ORTM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const V result = finish_.clipped(sums[r][v], terms);
        C* target = to.data + r * to.output_stride + v * V::kCount;
        const bool in_full = v < whole || (spills && r + 1 < rows && V::kCount - rest <= columns);
        in_full ? result.store(target) : store_part(result, target, rest);
      }
    }
  }

  static void store_part(V x, C* to, int64_t count) {
    if constexpr (std::is_same_v<C, float>) {
      x.store(to, count);
    } else {
      C lanes[V::kCount];
      x.store(lanes);
      std::copy_n(lanes, count, to);
    }
  }

  // --- one output, a window of 3 x 3, whose weights stay in registers ---------------------------
  bool has_nine_places() const {
    return s_.channels == 1 && s_.outer.empty() && s_.row.places() == 3 && s_.column.places() == 3;
  }

  void run_nine_places(const C* x, const C* weights, int64_t group, int64_t at,
                       const ImageBand& band, C* sums) const {
    const bool slides = s_.row.hop == 1 && s_.row.place(2) == 2;
    const C term = finish_.term(group);
    for_each_vector(x, at, band, sums, [&](const C* from, const Lines& lines) {
      slides ? slide_window(from, weights, term, lines) : place_window(from, weights, term, lines);
    });
  }

  /// body(x, lines) on vectors of columns of a band, for all of its lines or as many as `sums` has
  /// room for.
  template <class Body>
  void for_each_vector(const C* x, int64_t at, const ImageBand& band, C* sums,
                       const Body& body) const {
    Target to = target(at, sums);
    const bool is_direct = to.data != sums;
    to.output_stride = is_direct ? s_.column.patch.out : line(s_);
    const int64_t some_rows = is_direct ? band.rows : kMostRows;
    for (int64_t row = 0; row < band.rows; row += some_rows) {
      const int64_t rows = std::min(some_rows, band.rows - row);
      const C* from = x + row * s_.row.hop * s_.line_elements;
      // The last vector of a line overlaps the one before it.
      for (int64_t v = 0; v < ceil_div(band.columns, V::kCount); ++v) {
        const int64_t column =
            std::max<int64_t>(std::min(v * V::kCount, band.columns - V::kCount), 0);
        body(from + column, lines_of(rows, band.columns, {to.data + column, to.output_stride}));
      }
      if (is_direct) continue;
      for (int64_t r = 0; r < rows; ++r)
        finish_.write(sums + r * line(s_), at + (row + r) * s_.column.patch.out, band.columns);
    }
  }

  /// A vector of columns of several lines. What the first `whole` of them write behind a line is
  /// written again with the next ones.
  struct Lines {
    int64_t rows = 0, whole = 0, columns = 0;
    Target to;

    void put(V x, int64_t row) const {
      C* at = to.data + row * to.output_stride;
      row < whole ? x.store(at) : store_part(x, at, columns);
    }
  };

  Lines lines_of(int64_t rows, int64_t columns, const Target& to) const {
    const bool is_alone = s_.column_bands == 1 || to.output_stride != s_.column.patch.out;
    const int64_t narrow = is_alone ? rows + 1 - ceil_div(V::kCount, to.output_stride) : 0;
    return {rows, columns >= V::kCount ? rows : std::max<int64_t>(narrow, 0),
            std::min(columns, V::kCount), to};
  }

  /// Three places of a line of the window.
  struct Triple {
    V weights[3];

    explicit Triple(const C* from) {
      for (int k = 0; k < 3; ++k) weights[k] = V(from[k]);
    }
    V add(const V (&pixels)[3], V sum) const {
      ORTM_UNROLL
      for (int k = 0; k < 3; ++k) sum = multiply_add(weights[k], pixels[k], sum);
      return sum;
    }
  };

  void load_places(const C* line, int64_t first, V (&pixels)[3]) const {
    ORTM_UNROLL
    for (int k = 0; k < 3; ++k)
      pixels[k] = V::load(line + s_.places[static_cast<size_t>(first + k)]);
  }

  /// Outputs that see three neighbouring lines: a line is read once and added to three sums, whose
  /// order is that of the places.
  void slide_window(const C* x, const C* weights, C term, const Lines& lines) const {
    const Triple above(weights), middle(weights + 3), below(weights + 6);
    V pixels[3];
    load_places(x, 0, pixels);
    V oldest = above.add(pixels, V(C(0)));
    x += s_.line_elements;
    load_places(x, 0, pixels);
    oldest = middle.add(pixels, oldest);
    V newest = above.add(pixels, V(C(0)));
    const V terms(term);
    for (int64_t r = 0; r < lines.rows; ++r) {
      x += s_.line_elements;
      load_places(x, 0, pixels);
      const V sum = below.add(pixels, oldest);
      oldest = middle.add(pixels, newest);
      newest = above.add(pixels, V(C(0)));
      lines.put(finish_.clipped(sum, terms), r);
    }
  }

  void place_window(const C* x, const C* weights, C term, const Lines& lines) const {
    const Triple above(weights), middle(weights + 3), below(weights + 6);
    const V terms(term);
    V pixels[3];
    for (int64_t r = 0; r < lines.rows; ++r) {
      load_places(x, 0, pixels);
      V sum = above.add(pixels, V(C(0)));
      load_places(x, 3, pixels);
      sum = middle.add(pixels, sum);
      load_places(x, 6, pixels);
      lines.put(finish_.clipped(below.add(pixels, sum), terms), r);
      x += s_.row.hop * s_.line_elements;
    }
  }

  // --- one output, a window of few lines, a column of it at a time -----------------------------
  /// Whether a line of x is seen by several outputs: windows of 5 or 7 lines, at most two lines
  /// from each other, and dilated ones, also of 3, at each line. Lines that dilated windows share
  /// are some apart, so that none may write behind a line.
  bool shares_lines(const ImageBand& band) const {
    const int64_t places = s_.row.places();
    if (s_.channels != 1 || !s_.outer.empty() || s_.row.apart ||
        (places != 3 && places != 5 && places != 7))
      return false;
    const int64_t apart = s_.row.place(1);
    if (s_.row.place(places - 1) != apart * (places - 1)) return false;
    if (apart == 1) return places > 3 && s_.row.hop <= 2;
    return s_.row.hop == 1 && band.columns >= V::kCount;
  }

  void run_by_columns(const C* x, const C* weights, int64_t group, int64_t at,
                      const ImageBand& band, C* sums) const {
    const C term = finish_.term(group);
    const auto run = [&]<int kPlaces, int kHop> {
      for_each_vector(x, at, band, sums, [&](const C* from, const Lines& lines) {
        add_lines<kPlaces, kHop>(from, weights, term, lines);
      });
    };
    const bool is_dense = s_.row.hop == 1;
    switch (s_.row.places()) {
      case 3: run.template operator()<3, 1>(); break;
      case 5: is_dense ? run.template operator()<5, 1>() : run.template operator()<5, 2>(); break;
      default: is_dense ? run.template operator()<7, 1>() : run.template operator()<7, 2>(); break;
    }
  }

  template <int kPlaces, int kHop>
  void add_lines(const C* x, const C* weights, C term, const Lines& lines) const {
    constexpr int kRows = 8 / kHop;
    const int64_t apart = s_.row.place(1);
    for (int64_t first = 0; first < std::min(apart, lines.rows); ++first)
      for (int64_t row = first; row < lines.rows; row += kRows * apart)
        add_columns<kPlaces, kHop, kRows>(x + row * kHop * s_.line_elements, weights, term, lines,
                                          row);
  }

  /// kRows outputs from `row` on that share lines, as far as there are: the weights of a column
  /// stay in registers, and a vector of pixels is added to all outputs that see it.
  template <int kPlaces, int kHop, int kRows>
  void add_columns(const C* x, const C* weights, C term, const Lines& lines, int64_t row) const {
    const int64_t apart = s_.row.place(1), columns = s_.column.places();
    const int64_t rows = std::min<int64_t>(kRows, ceil_div(lines.rows - row, apart));
    const int64_t last = (rows - 1) * kHop + kPlaces - 1;
    V sums[kRows];
    ORTM_UNROLL
    for (V& sum : sums) sum = V(C(0));
    for (int64_t c = 0; c < columns; ++c) {
      V column[kPlaces];
      ORTM_UNROLL
      for (int k = 0; k < kPlaces; ++k) column[k] = V(weights[k * columns + c]);
      const C* from = x + s_.places[static_cast<size_t>(c)];
      ORTM_UNROLL
      for (int l = 0; l < (kRows - 1) * kHop + kPlaces; ++l) {
        const V pixels = V::load(from + std::min<int64_t>(l, last) * apart * s_.line_elements);
        ORTM_UNROLL
        for (int r = 0; r < kRows; ++r)
          if (l >= r * kHop && l - r * kHop < kPlaces)
            sums[r] = multiply_add(column[l - r * kHop], pixels, sums[r]);
      }
    }
    const V terms(term);
    ORTM_UNROLL
    for (int r = 0; r < kRows; ++r)
      if (r < rows) lines.put(finish_.clipped(sums[r], terms), row + r * apart);
  }

  // --- several outputs, which share the pixels -------------------------------------------------
  void run_line_by_line(const C* x, const C* weights, int64_t group, int64_t at,
                        const ImageBand& band, C* sums) const {
    for (int64_t r = 0; r < band.rows; ++r, x += s_.row.hop * s_.line_elements) {
      const Target to = target(at, sums);
      switch (s_.outputs) {
        case 2: run_vectors<2, 4>(x, weights, group, band.columns, to); break;
        case 3: run_vectors<3, 2>(x, weights, group, band.columns, to); break;
        default: run_vectors<4, 2>(x, weights, group, band.columns, to); break;
      }
      if (to.data == sums)
        for (int64_t o = 0; o < s_.outputs; ++o)
          finish_.write(sums + o * line(s_), at + o * s_.patches.pixels, band.columns);
      at += s_.column.patch.out;
    }
  }

  template <int kOutputs, int kVectors>
  void run_vectors(const C* x, const C* weights, int64_t group, int64_t columns,
                   const Target& to) const {
    constexpr int64_t kWidth = kVectors * V::kCount;
    int64_t column = 0;
    for (; column + kWidth <= columns; column += kWidth)
      multiply<kOutputs, kVectors>(x + column, weights, group, kWidth, to.data + column,
                                   to.output_stride);
    for (; column < columns; column += V::kCount)
      multiply<kOutputs, 1>(x + column, weights, group, std::min(V::kCount, columns - column),
                            to.data + column, to.output_stride);
  }

  template <int kOutputs, int kVectors>
  void multiply(const C* x, const C* weights, int64_t group, int64_t columns, C* to,
                int64_t to_stride) const {
    V sums[kOutputs][kVectors];
    ORTM_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[o][v] = V(C(0));
    }
    const int64_t channel_elements = s_.line_count() * s_.line_elements;
    const auto places = static_cast<int64_t>(s_.places.size());
    for (int64_t channel = 0; channel < s_.channels; ++channel, x += channel_elements)
      for (int64_t k = 0; k < places; ++k, weights += kOutputs) {
        const C* from = x + s_.places[static_cast<size_t>(k)];
        V pixels[kVectors];
        ORTM_UNROLL
        for (int v = 0; v < kVectors; ++v) pixels[v] = V::load(from + v * V::kCount);
        ORTM_UNROLL
        for (int o = 0; o < kOutputs; ++o) {
          const V weight(weights[o]);
          ORTM_UNROLL
          for (int v = 0; v < kVectors; ++v)
            sums[o][v] = multiply_add(weight, pixels[v], sums[o][v]);
        }
      }
    ORTM_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      const V term(finish_.term(group * s_.outputs + o));
      C* target = to + o * to_stride;
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const V result = finish_.clipped(sums[o][v], term);
        if (kVectors > 1 || columns == V::kCount) {
          result.store(target + v * V::kCount);
        } else {
          store_part(result, target, columns);
        }
      }
    }
  }

  const ConvShape& s_;
  const T* x_;
  Weights weights_;
  const Finish& finish_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
