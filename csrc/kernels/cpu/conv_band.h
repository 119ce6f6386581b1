// Lays out a part of an image with the channels of a pixel side by side and zeros beside the image,
// so that windows are runs of elements at fixed distances.
#pragma once

#include "kernels/cpu/conv_shape.h"
#include "kernels/cpu/lane_loads.h"
#include "kernels/cpu/panel_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Elements from, from + step, ...; at most kCount of them, then zeros.
template <class T>
FloatVec load_lanes(const T* from, int64_t step, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    if (step == 1)
      return count >= FloatVec::kCount ? FloatVec::load(from) : FloatVec::load(from, count);
  }
  alignas(64) float lanes[FloatVec::kCount] = {};
  const int64_t used = std::min(count, FloatVec::kCount);
  for (int64_t i = 0; i < used; ++i) lanes[i] = computed(from[i * step]);
  return FloatVec::load(lanes);
}

/// `count` positions, `step` apart, of a line of `channels` planes; pixels lie `pixel` apart.
template <class C, class T>
void interleave_line(const T* x, int64_t plane, int64_t step, int64_t count, int64_t channels,
                     int64_t pixel, C* to) {
  if constexpr (std::is_same_v<C, float>) {
    constexpr int64_t kCount = FloatVec::kCount;
    for (int64_t channel = 0; channel < channels; channel += kCount) {
      const int64_t some = std::min(kCount, channels - channel);
      for (int64_t at = 0; at < count; at += kCount) {
        const int64_t pixels = std::min(kCount, count - at);
        const T* from = x + channel * plane + at * step;
        FloatVec square[kCount];
        ORTM_UNROLL
        for (int64_t c = 0; c < kCount; ++c)
          square[c] = c < some ? load_lanes(from + c * plane, step, pixels) : FloatVec(0.0f);
        transpose_square(square);
        C* target = to + at * pixel + channel;
        for (int64_t p = 0; p < pixels; ++p)
          some == kCount ? square[p].store(target + p * pixel)
                         : square[p].store(target + p * pixel, some);
      }
    }
  } else {
    for (int64_t at = 0; at < count; ++at)
      for (int64_t c = 0; c < channels; ++c)
        to[at * pixel + c] = computed(x[c * plane + at * step]);
  }
}

/// Lays out what a band sees of the planes x, at all places of windows or at one of them.
template <class C, class T>
void lay_out_part(const ConvShape& s, const ImageBand& band, int64_t place, const T* x, C* to) {
  const int64_t count = s.column.span(band.columns);
  const int64_t left = s.column.origin(band.column) + s.column.place(place);
  const int64_t step = s.column.step, pixel = s.pixel_stride;
  const auto [first, last] = s.inside(left, count);
  s.for_each_line(band, [&, first = first, last = last](int64_t line, int64_t at) {
    C* target = to + line * s.line_elements + s.place_at(place);
    if (at < 0) {
      std::fill_n(target, count * pixel, C(0));
      return;
    }
    std::fill_n(target, first * pixel, C(0));
    interleave_line(x + at * s.column.patch.in + left + first * step, s.patches.in_pixels, step,
                    last - first, s.channels, pixel, target + first * pixel);
    std::fill_n(target + last * pixel, (count - last) * pixel, C(0));
  });
}

/// Lays out what a band sees of the planes x.
template <class C, class T>
void lay_out_pixels(const ConvShape& s, const ImageBand& band, const T* x, C* to) {
  for (int64_t part = 0; part < s.column.parts(); ++part) lay_out_part<C>(s, band, part, x, to);
}

/// Splits `count` elements into those at even and those at odd places. Zeros may follow up to a
/// whole vector, but not from `even_end` and `odd_end` on.
inline void deal_line(const float* from, int64_t count, float* even, const float* even_end,
                      float* odd, const float* odd_end) {
  constexpr int64_t kCount = FloatVec::kCount;
  const auto put = [](FloatVec x, float* to, const float* end) {
    end - to >= kCount ? x.store(to) : x.store(to, std::max<int64_t>(end - to, 0));
  };
  for (; count > 0; count -= 2 * kCount, from += 2 * kCount, even += kCount, odd += kCount) {
    const FloatVec a = load_at_most(from, count), b = load_at_most(from + kCount, count - kCount);
    put(every_other_lane<0>(a, b), even, even_end);
    put(every_other_lane<1>(a, b), odd, odd_end);
  }
}

/// Elements from, from + step, ...; zeros may follow up to a whole vector.
template <class C, class T>
void copy_line(const T* from, int64_t step, int64_t count, C* to) {
  int64_t i = 0;
  if constexpr (std::is_same_v<T, float>) {
    constexpr int64_t kCount = FloatVec::kCount;
    if (step == 1) {
      for (; i + kCount <= count; i += kCount) FloatVec::load(from + i).store(to + i);
      if (i == count) return;
      if (count > kCount)
        FloatVec::load(from + count - kCount).store(to + count - kCount);
      else
        FloatVec::load(from + i, count - i).store(to + i);
      return;
    }
  }
  for (; i < count; ++i) to[i] = computed(from[i * step]);
}

/// Elements that lay_out_lines may write behind a band.
inline constexpr int64_t kBehindBand = 16;

/// Where in a line of a band lie the positions of the image that leave the remainder `phase`.
struct LinePhase {
  int64_t begin = 0, end = 0;
};

/// Lays out lines whose positions stay neighbours: `count` elements of each, from x on in the first
/// line of the image, to position `first`.
template <class C>
void copy_lines(const ConvShape& s, const ImageBand& band, const C* x, int64_t first, int64_t count,
                C* to) {
  const int64_t top = s.row.origin(band.row), step = s.row.step;
  for (int64_t r = 0; r < s.row.span(band.rows); ++r) {
    const int64_t at = top + r * step;
    if (at < 0 || at >= s.row.patch.in) continue;
    copy_line(x + at * s.column.patch.in, 1, count, to + r * s.line_elements + first);
  }
}

/// Lays out what a band sees of each plane: of a line first the positions that are multiples of
/// the hop, then those behind them, and so on. Beside the image the memory keeps the zeros that it
/// holds: of a band of the same positions, or of none.
template <class C, class T>
void lay_out_lines(const ConvShape& s, const ImageBand& band, const T* x, C* to) {
  constexpr int64_t kKnownPhases = 4;
  const int64_t count = s.column.span(band.columns), left = s.column.origin(band.column);
  const int64_t hop = s.column.hop, step = s.column.step * hop, length = s.phase_elements;
  const auto [first, last] = s.inside(left, count);
  if constexpr (std::is_same_v<C, T>)
    if (hop == 1 && s.column.step == 1 && s.outer.empty()) {
      for (int64_t channel = 0; channel < s.channels; ++channel)
        copy_lines(s, band, x + channel * s.patches.in_pixels + left + first, first, last - first,
                   to + channel * s.line_count() * s.line_elements);
      return;
    }
  const auto find = [hop, first = first, last = last](int64_t phase) {
    const int64_t begin = ceil_div(std::max<int64_t>(first - phase, 0), hop);
    return LinePhase{begin, std::max(begin, ceil_div(std::max<int64_t>(last - phase, 0), hop))};
  };
  std::array<LinePhase, kKnownPhases> known;
  for (int64_t phase = 0; phase < std::min(hop, kKnownPhases); ++phase)
    known[static_cast<size_t>(phase)] = find(phase);
  const auto lay_out = [&, first = first, last = last](int64_t line, int64_t at) {
    C* target = to + line * s.line_elements;
    if (at < 0) return;
    const T* from = x + at * s.column.patch.in + left;
    if constexpr (std::is_same_v<T, float>) {
      if (hop == 2 && step == 2) {  // each element is read once for both phases
        const int64_t even = first % 2, odd = 1 - even;
        float *evens = target + even * length, *odds = target + odd * length;
        const LinePhase of_evens = known[static_cast<size_t>(even)],
                        of_odds = known[static_cast<size_t>(odd)];
        deal_line(from + first, last - first, evens + of_evens.begin, evens + length,
                  odds + of_odds.begin, odds + length);
        return;
      }
    }
    for (int64_t phase = 0; phase < hop; ++phase, target += length) {
      const auto [begin, end] =
          phase < kKnownPhases ? known[static_cast<size_t>(phase)] : find(phase);
      copy_line(from + phase * s.column.step + begin * step, step, end - begin, target + begin);
    }
  };
  for (int64_t channel = 0; channel < s.channels; ++channel) {
    s.for_each_line(band, lay_out);
    x += s.patches.in_pixels;
    to += s.line_count() * s.line_elements;
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
