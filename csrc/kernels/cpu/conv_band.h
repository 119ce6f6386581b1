// Lays out a part of an image with the channels of a pixel side by side and zeros beside the image,
// so that windows are runs of elements at fixed distances.
#pragma once

#include "kernels/cpu/conv_shape.h"
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

/// Lays out what a band sees of the planes x.
template <class C, class T>
void lay_out_pixels(const ConvShape& s, const ImageBand& band, const T* x, C* to) {
  const int64_t count = s.column.span(band.columns), left = s.column.origin(band.column);
  const int64_t step = s.column.step, pixel = s.pixel_stride;
  const auto [first, last] = s.inside(left, count);
  s.for_each_line(band, [&, first = first, last = last](int64_t line, int64_t at) {
    C* target = to + line * s.line_elements;
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

/// Lanes 0, 2, 4, ... of two vectors one after the other.
inline FloatVec even_lanes(FloatVec a, FloatVec b) {
  IntLanes even;
  for (int lane = 0; lane < FloatVec::kCount; ++lane) even[lane] = 2 * lane;
  return __builtin_shuffle(a.v, b.v, even);
}

/// Elements from, from + step, ...; zeros may follow up to a whole vector.
template <class C, class T>
void copy_line(const T* from, int64_t step, int64_t count, C* to) {
  int64_t i = 0;
  if constexpr (std::is_same_v<T, float>) {
    constexpr int64_t kCount = FloatVec::kCount;
    if (step == 1) {
      for (; i + kCount <= count; i += kCount) FloatVec::load(from + i).store(to + i);
      if (i < count) FloatVec::load(from + i, count - i).store(to + i);
      return;
    }
    if (step == 2)  // the element behind the last one may not exist
      for (; i + kCount < count; i += kCount)
        even_lanes(FloatVec::load(from + 2 * i), FloatVec::load(from + 2 * i + kCount))
            .store(to + i);
  }
  for (; i < count; ++i) to[i] = computed(from[i * step]);
}

/// Elements that lay_out_lines may write behind a band.
inline constexpr int64_t kBehindBand = 16;

/// Lays out what a band sees of each plane: of a line first the positions that are multiples of
/// the hop, then those behind them, and so on, with zeros beside the image. `padded`: the memory
/// holds a band of the same positions, whose zeros stay.
template <class C, class T>
void lay_out_lines(const ConvShape& s, const ImageBand& band, bool padded, const T* x, C* to) {
  const int64_t count = s.column.span(band.columns), left = s.column.origin(band.column);
  const int64_t hop = s.column.hop, step = s.column.step * hop, length = s.phase_elements;
  const auto [first, last] = s.inside(left, count);
  for (int64_t channel = 0; channel < s.channels; ++channel) {
    s.for_each_line(band, [&, first = first, last = last](int64_t line, int64_t at) {
      C* target = to + line * s.line_elements;
      if (at < 0) {
        if (!padded) std::fill_n(target, s.line_elements, C(0));
        return;
      }
      const T* from = x + at * s.column.patch.in + left;
      for (int64_t phase = 0; phase < hop; ++phase, target += length) {
        const int64_t begin = ceil_div(std::max<int64_t>(first - phase, 0), hop);
        const int64_t end = std::max(begin, ceil_div(std::max<int64_t>(last - phase, 0), hop));
        if (!padded) std::fill_n(target, begin, C(0));
        copy_line(from + phase * s.column.step + begin * step, step, end - begin, target + begin);
        if (!padded) std::fill(target + end, target + length, C(0));
      }
    });
    x += s.patches.in_pixels;
    to += s.line_count() * s.line_elements;
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
