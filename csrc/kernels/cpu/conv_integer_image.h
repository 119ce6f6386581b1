// The image of an integer convolution with the channels of a group beside each other and with what
// lies around it: a window of outputs that are neighbours is a run of memory there, for each group
// of channels and each place.
#pragma once

#include "kernels/cpu/integer_product.h"
#include "kernels/cpu/patches.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// The sizes of such an image, and where windows see it.
class GroupedImage {
 public:
  GroupedImage() = default;
  explicit GroupedImage(const PatchShape& shape) {
    for (const PatchAxis& axis : shape.axes) {
      const auto [least, most] = std::minmax_element(axis.offsets.begin(), axis.offsets.end());
      Axis a;
      a.before = std::max<int64_t>(-*least, 0);
      const int64_t reach = (axis.out - 1) * axis.stride + *most - (axis.in - 1);
      a.in = axis.in;
      a.whole = a.before + axis.in + std::max<int64_t>(reach, 0);
      axes_.push_back(a);
      pixels_ *= a.whole;
    }
    int64_t pitch = 1;
    for (size_t d = axes_.size(); d-- > 0; pitch *= axes_[d].whole) axes_[d].pitch = pitch;
    lines_ = pixels_ / axes_.back().whole;
    for (int64_t place = 0; place < shape.places; ++place) {
      const auto offsets = shape.offsets_of(place);
      int64_t at = 0;
      for (size_t d = 0; d < axes_.size(); ++d)
        at += (offsets[d] + axes_[d].before) * axes_[d].pitch;
      places_.push_back(at);
    }
    for (int64_t line = 0; line < lines_; ++line) sources_.push_back(source_of(line));
    const int64_t outputs = shape.last().out == 0 ? 0 : shape.pixels / shape.last().out;
    for (int64_t line = 0; line < outputs; ++line) steps_.push_back(step_of(shape, line, axes_));
  }

  /// Pixels of a group of channels.
  int64_t pixels() const { return pixels_; }
  /// The pixel that place `place` of the first output's window sees.
  int64_t place(int64_t place) const { return places_[static_cast<size_t>(place)]; }
  /// How many pixels further the first output of output line `line` sees.
  int64_t step(int64_t line) const { return steps_[static_cast<size_t>(line)]; }

  /// Writes a group of channels: `count` <= kGroup planes from `planes` on, xor `flip`, `beside`
  /// around them, and zeros for the channels that are missing.
  template <int64_t kGroup>
  void write(const int8_t* planes, int64_t count, int64_t in_pixels, int8_t flip, int8_t beside,
             int8_t* to) const {
    if (pixels_ == in_pixels) {  // nothing lies around it
      const int8_t* from[kGroup];
      for (int64_t g = 0; g < kGroup; ++g) from[g] = planes + (g < count ? g * in_pixels : 0);
      return interleave<kGroup>(from, count, in_pixels, flip, to);
    }
    const Axis& last = axes_.back();
    const int64_t behind = last.whole - last.before - last.in;
    for (const int64_t source : sources_) {
      if (source < 0) {
        to = fill<kGroup>(to, last.whole, count, beside);
        continue;
      }
      const int8_t* from[kGroup];
      for (int64_t g = 0; g < kGroup; ++g)
        from[g] = planes + (g < count ? g * in_pixels : 0) + source * last.in;
      to = fill<kGroup>(to, last.before, count, beside);
      interleave<kGroup>(from, count, last.in, flip, to);
      to = fill<kGroup>(to + last.in * kGroup, behind, count, beside);
    }
  }

 private:
  struct Axis {
    int64_t before = 0, in = 1, whole = 1, pitch = 1;
  };

  /// The line of the image that `line` is; -1 for one beside it.
  int64_t source_of(int64_t line) const {
    int64_t source = 0, size = 1;
    for (size_t d = axes_.size() - 1; d-- > 0;) {
      const int64_t at = line % axes_[d].whole - axes_[d].before;
      if (at < 0 || at >= axes_[d].in) return -1;
      source += at * size;
      size *= axes_[d].in;
      line /= axes_[d].whole;
    }
    return source;
  }

  static int64_t step_of(const PatchShape& shape, int64_t line, const std::vector<Axis>& axes) {
    int64_t at = 0;
    for (size_t d = axes.size() - 1; d-- > 0;) {
      at += line % shape.axes[d].out * shape.axes[d].stride * axes[d].pitch;
      line /= shape.axes[d].out;
    }
    return at;
  }

  template <int64_t kGroup>
  static int8_t* fill(int8_t* to, int64_t pixels, int64_t count, int8_t beside) {
    if constexpr (kGroup == 1) {
      if (pixels > 2) return std::fill_n(to, pixels, beside);
      if (pixels > 0) to[0] = to[pixels - 1] = beside;
      return to + pixels;
    }
    int8_t pixel[kGroup];
    for (int64_t g = 0; g < kGroup; ++g) pixel[g] = g < count ? beside : int8_t{0};
    for (int64_t i = 0; i < pixels; ++i, to += kGroup) std::memcpy(to, pixel, kGroup);
    return to;
  }

  template <int64_t kGroup>
  static void interleave(const int8_t* const (&from)[kGroup], int64_t count, int64_t pixels,
                         int8_t flip, int8_t* to) {
    int64_t i = 0;
    if constexpr (kGroup == 1) {
      if (flip == 0) {
        std::memcpy(to, from[0], static_cast<size_t>(pixels));
      } else {
        const int8_t* plane = from[0];
        ORTM_SIMD
        for (int64_t p = 0; p < pixels; ++p) to[p] = static_cast<int8_t>(plane[p] ^ flip);
      }
      return;
    }
#if defined(__AVX2__)
    if constexpr (kGroup > 1) {
      // The last vector of a line begins where it ends with the line.
      const auto interleave_all = [&](auto width) {
        constexpr int64_t kWidth = decltype(width)::value;
        for (; i < pixels; i += kWidth) {
          i = std::min(i, pixels - kWidth);
          interleave_vector<kGroup, kWidth>(from, i, count, flip, to + i * kGroup);
        }
      };
      if (pixels >= 16) return interleave_all(std::integral_constant<int64_t, 16>());
      if (pixels >= 8) return interleave_all(std::integral_constant<int64_t, 8>());
      if (pixels >= 4) return interleave_all(std::integral_constant<int64_t, 4>());
    }
#endif
    for (; i < pixels; ++i)
      for (int64_t g = 0; g < kGroup; ++g)
        to[i * kGroup + g] = g < count ? static_cast<int8_t>(from[g][i] ^ flip) : int8_t{0};
  }

#if defined(__AVX2__)
  /// Pixels [i, i + kWidth); kWidth: 16, 8 or 4.
  template <int64_t kGroup, int64_t kWidth>
  static void interleave_vector(const int8_t* const (&from)[kGroup], int64_t i, int64_t count,
                                int8_t flip, int8_t* to) {
    const auto load = [&](int64_t g) {
      __m128i pixels = _mm_setzero_si128();
      if (g >= count) return pixels;
      std::memcpy(&pixels, from[g] + i, kWidth);
      return _mm_xor_si128(pixels, _mm_set1_epi8(flip));
    };
    __m128i vectors[kGroup];
    const __m128i a = load(0), b = load(1);
    vectors[0] = _mm_unpacklo_epi8(a, b);
    vectors[1] = _mm_unpackhi_epi8(a, b);
    if constexpr (kGroup == 4) {
      const __m128i c = load(2), d = load(3);
      const __m128i low = vectors[0], high = vectors[1];
      const __m128i low2 = _mm_unpacklo_epi8(c, d), high2 = _mm_unpackhi_epi8(c, d);
      vectors[0] = _mm_unpacklo_epi16(low, low2);
      vectors[1] = _mm_unpackhi_epi16(low, low2);
      vectors[2] = _mm_unpacklo_epi16(high, high2);
      vectors[3] = _mm_unpackhi_epi16(high, high2);
    }
    std::memcpy(to, vectors, kWidth * kGroup);
  }
#endif

  std::vector<Axis> axes_;
  std::vector<int64_t> places_;
  std::vector<int64_t> sources_;  // of each line: that of the image, or -1
  std::vector<int64_t> steps_;    // of each line of outputs
  int64_t pixels_ = 1, lines_ = 1;
};

/// Panels of the windows of a block of outputs, for groups of kGroup channels.
template <int64_t kGroup, int64_t kMostColumns>
class WindowPanels {
 public:
  WindowPanels(const GroupedImage& image, const PatchShape& shape, const int8_t* pixels)
      : image_(image), shape_(shape), pixels_(pixels) {}

  /// Takes output pixels [column, column + width).
  void take_block(int64_t column, int64_t width) {
    panels_ = ceil_div(width, kIntegerPanel);
    const int64_t stride = shape_.last().stride, out = shape_.last().out;
    int64_t line = column / out, first = column % out;
    for (int64_t i = 0; i < width; ++line, first = 0) {
      const int64_t end = std::min(i + out - first, width);
      int64_t at = image_.step(line) + first * stride;
      for (; i < end; ++i, at += stride) steps_[i] = static_cast<int32_t>(at);
    }
    // Columns that pad the last panel see what the last output sees.
    std::fill(steps_ + width, steps_ + panels_ * kIntegerPanel, steps_[width - 1]);
    for (int64_t p = 0; p < panels_; ++p) {
      const int32_t* steps = steps_ + p * kIntegerPanel;
      runs_[p] = true;
      for (int64_t i = 1; i < kIntegerPanel; ++i) runs_[p] &= steps[i] == steps[0] + i;
    }
  }

  /// Packs places [first, first + inner) of the windows, in the order of packed weights, into
  /// panels of `padded` places each.
  void pack(int64_t first, int64_t inner, int64_t padded, int8_t* to) const {
    const int64_t groups = ceil_div(inner, kGroup);
    for (int64_t g = 0; g < groups; ++g, to += kIntegerPanel * kGroup) {
      const int64_t row = first / kGroup + g;
      const int8_t* from =
          pixels_ +
          (row / shape_.places * image_.pixels() + image_.place(row % shape_.places)) * kGroup;
      for (int64_t p = 0; p < panels_; ++p)
        pack_panel(from, steps_ + p * kIntegerPanel, runs_[p], to + p * padded * kIntegerPanel);
    }
    for (int64_t g = groups; g < padded / kGroup; ++g, to += kIntegerPanel * kGroup)
      for (int64_t p = 0; p < panels_; ++p)
        std::fill_n(to + p * padded * kIntegerPanel, kIntegerPanel * kGroup, int8_t{0});
  }

 private:
  static void pack_panel(const int8_t* from, const int32_t* steps, bool is_run, int8_t* to) {
    if (is_run) {
      std::memcpy(to, from + int64_t{steps[0]} * kGroup, kIntegerPanel * kGroup);
      return;
    }
    ORTM_UNROLL
    for (int64_t i = 0; i < kIntegerPanel; ++i)
      std::memcpy(to + i * kGroup, from + int64_t{steps[i]} * kGroup, kGroup);
  }

  const GroupedImage& image_;
  const PatchShape& shape_;
  const int8_t* pixels_;
  int64_t panels_ = 0;
  int32_t steps_[kMostColumns];
  bool runs_[kMostColumns / kIntegerPanel];
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
