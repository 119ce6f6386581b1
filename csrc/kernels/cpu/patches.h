// The windows of an image as a matrix that does not exist in memory, the right factor of an
// implicit product: a row for each channel and place of the window, a column for each output pixel.
// (Chellapilla, Puri and Simard, "High Performance Convolutional Neural Networks for Document
// Processing", 2006, made this matrix as a whole.)
#pragma once

#include <array>
#include <vector>

#include "kernels/cpu/tiled_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Most spatial dimensions of an image.
inline constexpr size_t kMostSpatial = 6;

/// One spatial dimension: place k of the window of output o lies at o * stride + offsets[k] of the
/// image, which is 0 outside.
struct PatchAxis {
  int64_t in = 1, out = 1, stride = 1;
  std::vector<int64_t> offsets;

  int64_t places() const { return static_cast<int64_t>(offsets.size()); }
  /// Outputs [first, last) of [begin, end) that see a position inside at this offset.
  std::array<int64_t, 2> inside(int64_t offset, int64_t begin, int64_t end) const {
    const int64_t first = std::clamp(offset >= 0 ? 0 : ceil_div(-offset, stride), begin, end);
    const int64_t last = in <= offset ? first : ceil_div(in - offset, stride);
    return {first, std::clamp(last, first, end)};
  }
};

/// Outputs that are neighbours in the last dimension, among those of a block.
struct PatchSegment {
  int64_t begin = 0, count = 0;  // within the block
  int64_t first = 0;             // within the last dimension
  std::array<int64_t, kMostSpatial> outer{};
};

struct PatchShape {
  std::vector<PatchAxis> axes;
  int64_t places = 1, in_pixels = 1, pixels = 1;

  PatchShape() = default;
  explicit PatchShape(std::vector<PatchAxis> all) : axes(std::move(all)) {
    for (const PatchAxis& axis : axes) {
      places *= axis.places();
      in_pixels *= axis.in;
      pixels *= axis.out;
    }
  }

  const PatchAxis& last() const { return axes.back(); }

  /// Whether the matrix is the image itself.
  bool is_image() const {
    return std::all_of(axes.begin(), axes.end(), [](const PatchAxis& axis) {
      return axis.in == axis.out && axis.stride == 1 && axis.places() == 1 && axis.offsets[0] == 0;
    });
  }

  /// body(segment) for output pixels [column, column + width), which are in row-major order.
  template <class Body>
  void for_each_segment(int64_t column, int64_t width, const Body& body) const {
    PatchSegment segment;
    for (int64_t at = column; at < column + width; at += segment.count) {
      int64_t rest = at / last().out;
      segment.begin = at - column;
      segment.first = at % last().out;
      segment.count = std::min(last().out - segment.first, column + width - at);
      for (size_t d = axes.size() - 1; d-- > 0;) {
        segment.outer[d] = rest % axes[d].out;
        rest /= axes[d].out;
      }
      body(segment);
    }
  }

  /// The offsets of a place along each dimension.
  std::array<int64_t, kMostSpatial> offsets_of(int64_t place) const {
    std::array<int64_t, kMostSpatial> offsets{};
    for (size_t d = axes.size(); d-- > 0;) {
      offsets[d] = axes[d].offsets[static_cast<size_t>(place % axes[d].places())];
      place /= axes[d].places();
    }
    return offsets;
  }
};

/// Output pixels that are worked on together: at most kRowChunk, whole lines where they fit.
inline int64_t pixel_chunk(const PatchShape& s) {
  const int64_t line = std::max<int64_t>(s.last().out, 1);
  return line > kRowChunk ? kRowChunk : kRowChunk / line * line;
}

/// body(place, from, at, count) for each place of the windows of output pixels [begin, begin +
/// count) of a plane, and each part of a line: the output `at` among them sees the element `from`
/// there, and the count - 1 outputs behind it those a stride apart. What lies beside the image is
/// left out.
template <class T, class Body>
void for_each_place(const PatchShape& s, const T* image, int64_t begin, int64_t count,
                    const Body& body) {
  const size_t last = s.axes.size() - 1;
  const PatchAxis& axis = s.axes[last];
  for (int64_t place = 0; place < s.places; ++place) {
    const auto offsets = s.offsets_of(place);
    s.for_each_segment(begin, count, [&](const PatchSegment& segment) {
      int64_t line = 0;
      for (size_t d = 0; d < last; ++d) {
        const int64_t at = segment.outer[d] * s.axes[d].stride + offsets[d];
        if (at < 0 || at >= s.axes[d].in) return;
        line = line * s.axes[d].in + at;
      }
      const auto [first, stop] =
          axis.inside(offsets[last], segment.first, segment.first + segment.count);
      if (first < stop)
        body(place, image + line * axis.in + first * axis.stride + offsets[last],
             segment.begin + (first - segment.first), stop - first);
    });
  }
}

/// What the outputs of a segment see of an image at one place of their windows.
template <class C, class T>
void read_segment(const PatchShape& s, const std::array<int64_t, kMostSpatial>& offsets,
                  const PatchSegment& segment, const T* image, C* to) {
  const size_t last = s.axes.size() - 1;
  int64_t line = 0;
  for (size_t d = 0; d < last; ++d) {
    const int64_t at = segment.outer[d] * s.axes[d].stride + offsets[d];
    if (at < 0 || at >= s.axes[d].in) {
      std::fill_n(to, segment.count, C(0));
      return;
    }
    line = line * s.axes[d].in + at;
  }
  const PatchAxis& axis = s.axes[last];
  const int64_t end = segment.first + segment.count;
  const auto [begin, stop] = axis.inside(offsets[last], segment.first, end);
  to = std::fill_n(to, begin - segment.first, C(0));
  const T* from = image + line * axis.in + begin * axis.stride + offsets[last];
  if (axis.stride == 1) {
    for (int64_t i = 0; i < stop - begin; ++i) to[i] = computed(from[i]);
  } else {
    for (int64_t i = 0; i < stop - begin; ++i) to[i] = computed(from[i * axis.stride]);
  }
  std::fill_n(to + (stop - begin), end - stop, C(0));
}

/// Packs rows [first, first + inner) of output pixels [column, column + width) as pack_panels does;
/// `x` has a plane of in_pixels for each channel.
template <class C, class T>
void pack_patches(const PatchShape& s, const T* x, int64_t first, int64_t inner, int64_t column,
                  int64_t width, C* to) {
  if (s.is_image())
    return pack_panels<C>(
        StridedMatrix<const T>{x + first * s.in_pixels + column, inner, width, s.in_pixels, 1}, to);
  constexpr int64_t kMost = TiledProduct<C>::kMostColumns;
  PatchSegment segments[kMost];
  int64_t count = 0;
  s.for_each_segment(column, width,
                     [&](const PatchSegment& segment) { segments[count++] = segment; });
  alignas(64) C row[kMost + kPanelWidth<C>] = {};  // zeros behind the last column
  for (int64_t r = 0; r < inner; ++r) {
    const auto offsets = s.offsets_of((first + r) % s.places);
    const T* image = x + (first + r) / s.places * s.in_pixels;
    for (int64_t i = 0; i < count; ++i)
      read_segment(s, offsets, segments[i], image, row + segments[i].begin);
    for (int64_t begin = 0; begin < width; begin += kPanelWidth<C>) {
      const int64_t lanes = whole_vectors<C>(std::min(width - begin, kPanelWidth<C>));
      std::copy_n(row + begin, lanes, to + begin * inner + r * lanes);
    }
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
