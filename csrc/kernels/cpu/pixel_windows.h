// Windows of channels-last images of any number of dimensions: an output pixel is the fold of the
// pixels in its window, each a row of channels. Along a line, windows inside of the image have the
// same distances between their pixels, which are worked out once.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/float_vec.h"
#include "kernels/cpu/patches.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// The pixels of windows that lie inside of the image, as elements behind a first one, in order.
using Places = std::span<const int64_t>;

/// Places [first, last) of the window at `start` along one dimension that lie inside.
inline std::array<int64_t, 2> places_inside(const PatchAxis& axis, int64_t start) {
  const auto& offsets = axis.offsets;  // ascending
  const auto first = std::lower_bound(offsets.begin(), offsets.end(), -start);
  return {first - offsets.begin(),
          std::lower_bound(first, offsets.end(), axis.in - start) - offsets.begin()};
}

/// The lines of the windows of a segment that lie inside, by their first pixels.
inline void find_lines(const PatchShape& s, const PatchSegment& segment,
                       std::vector<int64_t>& lines) {
  lines.clear();
  for (int64_t place = 0; place < s.places; place += s.last().places()) {
    const auto offsets = s.offsets_of(place);
    int64_t line = 0;
    bool inside = true;
    for (size_t d = 0; d + 1 < s.axes.size(); ++d) {
      const int64_t at = segment.outer[d] * s.axes[d].stride + offsets[d];
      inside = inside && at >= 0 && at < s.axes[d].in;
      line = line * s.axes[d].in + at;
    }
    if (inside) lines.push_back(line * s.last().in);
  }
}

/// body(from, places, segment, i) for output pixels [begin, end) of an image of `channels`: the
/// window of pixel segment.begin + i has these places behind element `from`.
template <class Body>
void for_each_window(const PatchShape& s, int64_t channels, int64_t begin, int64_t end,
                     const Body& body) {
  const PatchAxis& columns = s.last();
  std::vector<int64_t> lines, places;
  s.for_each_segment(begin, end - begin, [&](const PatchSegment& segment) {
    find_lines(s, segment, lines);
    std::array<int64_t, 2> inside{-1, -1};  // of the windows that `places` are of
    for (int64_t i = 0; i < segment.count; ++i) {
      const int64_t start = (segment.first + i) * columns.stride;
      const std::array<int64_t, 2> own = places_inside(columns, start);
      if (own != inside) {
        inside = own;
        places.clear();
        for (int64_t line : lines)
          for (int64_t k = own[0]; k < own[1]; ++k)
            places.push_back((line + columns.offsets[static_cast<size_t>(k)]) * channels);
      }
      body(start * channels, Places(places), segment, i);
    }
  });
}

/// body(image, begin, end) for ranges of output pixels that cover all images.
template <class Body>
void for_each_image_part(const KernelArgs& args, const PatchShape& s, const Body& body) {
  const Sizes& sizes = args.facts.inputs[0].layout.sizes;
  parallel_ranges(args.context, sizes[0] * s.pixels, grain_for(sizes[1] * s.places / 4),
                  [&](int64_t begin, int64_t end) {
                    while (begin < end) {
                      const int64_t image = begin / s.pixels, first = image * s.pixels;
                      const int64_t stop = std::min(end, first + s.pixels);
                      body(image, begin - first, stop - first);
                      begin = stop;
                    }
                  });
}

/// fold.finish of the fold of x[place] over `places`, for kVectors vectors of channels, or the
/// first `count` channels of one. Results stay in registers.
template <int kVectors, class Fold>
inline void fold_vectors(const float* x, Places places, const Fold& fold, int64_t count, float* y) {
  FloatVec results[kVectors];
  ORTM_UNROLL
  for (FloatVec& result : results) result = fold.start();
  for (int64_t place : places) {
    ORTM_UNROLL
    for (int64_t v = 0; v < kVectors; ++v) {
      const float* from = x + place + v * FloatVec::kCount;
      const bool whole = kVectors > 1 || count == FloatVec::kCount;
      results[v] = fold.add(results[v], whole ? FloatVec::load(from) : FloatVec::load(from, count));
    }
  }
  if (kVectors == 1 && count < FloatVec::kCount) return fold.finish(results[0]).store(y, count);
  ORTM_UNROLL
  for (int64_t v = 0; v < kVectors; ++v) fold.finish(results[v]).store(y + v * FloatVec::kCount);
}

/// All channels of a pixel.
template <class Fold>
void fold_pixel(const float* x, Places places, const Fold& fold, int64_t channels, float* y) {
  constexpr int64_t kCount = FloatVec::kCount;
  int64_t c = 0;
  for (; c + 4 * kCount <= channels; c += 4 * kCount)
    fold_vectors<4>(x + c, places, fold, kCount, y + c);
  if (c + 2 * kCount <= channels) {
    fold_vectors<2>(x + c, places, fold, kCount, y + c);
    c += 2 * kCount;
  }
  for (; c < channels; c += kCount) {
    if (c + kCount > channels) c = std::max<int64_t>(channels - kCount, 0);  // some once more
    fold_vectors<1>(x + c, places, fold, std::min(channels, kCount), y + c);
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
