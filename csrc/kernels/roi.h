// Regions of interest of images, for CPU and CUDA alike: where a region's bins and their samples
// lie (RoiAlign), and which elements a bin of whole ones has (MaxRoiPool).
#pragma once

#include "ir/attr.h"
#include "kernels/scalar_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Samples of a bin along one dimension. Regions beyond have millions of pixels in each bin.
inline constexpr int64_t kMostRoiSamples = 4096;

/// A region along one dimension.
template <class T>
struct RoiSpan {
  T start, bin;     // the size of a bin
  int64_t samples;  // of a bin; -1: too many
};

/// Attributes of RoiAlign.
struct RoiAlignOptions {
  int64_t rows, columns;  // of bins
  int64_t sampling_ratio;
  double spatial_scale;
  bool half_pixel, is_max;

  explicit RoiAlignOptions(const Attrs& attrs)
      : rows(attrs.integer("output_height")),
        columns(attrs.integer("output_width")),
        sampling_ratio(attrs.integer("sampling_ratio")),
        spatial_scale(attrs.number("spatial_scale")),
        half_pixel(attrs.flag("half_pixel")),
        is_max(attrs.string("mode") == "max") {}
};

template <class T>
ORTM_HD RoiSpan<T> roi_span(const RoiAlignOptions& options, T begin, T end, int64_t bins) {
  const T scale = static_cast<T>(options.spatial_scale), shift = options.half_pixel ? T(0.5) : T(0);
  const T start = begin * scale - shift;
  T extent = (end * scale - shift) - start;
  if (!options.half_pixel && !(extent > T(1))) extent = T(1);
  const T bin = extent / static_cast<T>(bins);
  if (options.sampling_ratio > 0) return {start, bin, options.sampling_ratio};
  const T samples = std::ceil(bin);
  if (samples > static_cast<T>(kMostRoiSamples)) return {start, bin, -1};
  return {start, bin, samples > T(0) ? static_cast<int64_t>(samples) : 0};
}

/// The elements that a sample lies between, and their weights: 0 outside of the image.
template <class T>
struct RoiTap {
  int64_t low, high;
  T low_weight, high_weight;
};

template <class T>
ORTM_HD RoiTap<T> roi_tap(const RoiSpan<T>& span, int64_t bin, int64_t sample, int64_t size) {
  const T step = (static_cast<T>(sample) + T(0.5)) * span.bin / static_cast<T>(span.samples);
  T at = span.start + static_cast<T>(bin) * span.bin + step;
  if (!(at >= T(-1)) || !(at <= static_cast<T>(size)) || size == 0) return {0, 0, T(0), T(0)};
  if (at < T(0)) at = T(0);
  const auto low = static_cast<int64_t>(at);
  if (low >= size - 1) return {size - 1, size - 1, T(1), T(0)};
  const T above = at - static_cast<T>(low);
  return {low, low + 1, T(1) - above, above};
}

/// The larger of two, NaN if one is. Either is as likely, so there is no branch.
template <class T>
ORTM_HD T roi_larger(T best, T value) {
  return (value > best) | (value != value) ? value : best;
}

/// The largest of the four weighted elements around a sample, of which x has rows of `columns`.
template <class T>
ORTM_HD T roi_largest(const T* x, int64_t columns, const RoiTap<T>& down, const RoiTap<T>& across) {
  const T *low = x + down.low * columns, *high = x + down.high * columns;
  const T values[4] = {down.low_weight * across.low_weight * low[across.low],
                       down.low_weight * across.high_weight * low[across.high],
                       down.high_weight * across.low_weight * high[across.low],
                       down.high_weight * across.high_weight * high[across.high]};
  T largest = values[0];
  for (int i = 1; i < 4; ++i) largest = roi_larger(largest, values[i]);
  return largest;
}

/// Elements [begin, end) of a dimension.
struct RoiBin {
  int64_t begin, end;
};

/// The whole elements of a bin: bounds are rounded outwards, so neighbours overlap.
template <class T>
ORTM_HD RoiBin roi_bin(double spatial_scale, T first, T last, int64_t bin, int64_t bins,
                       int64_t size) {
  // Halves away from zero, as std::round. Whole numbers beyond 2^24 are far outside of any image.
  const T start = std::round(first * static_cast<T>(spatial_scale));
  const T stop = std::round(last * static_cast<T>(spatial_scale));
  T extent = stop - start + T(1);
  if (!(extent > T(1))) extent = T(1);
  const T each = extent / static_cast<T>(bins), most = static_cast<T>(size);
  const T low = std::floor(static_cast<T>(bin) * each) + start;
  const T high = std::ceil(static_cast<T>(bin + 1) * each) + start;
  const auto within = [=](T at) {
    return at > T(0) ? static_cast<int64_t>(at < most ? at : most) : int64_t{0};
  };
  return {within(low), within(high)};
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
