// Channels-last images of an integer convolution, and where the windows of output pixels lie.
#pragma once

#include <cstring>
#include <vector>

#include "kernels/cpu/conv_integer_channels.h"
#include "kernels/cpu/conv_integer_quads.h"
#include "kernels/cpu/conv_integer_step.h"
#include "kernels/cpu/conv_shape.h"
#include "kernels/cpu/integer_matrix.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Bytes of scratch memory that packing takes.
inline int64_t packing_scratch_bytes(const IntegerConv& conv) {
  return conv.patches.places == 1 ? 0 : conv.outputs * conv.inner();
}

/// Operands, and parts of the workspace in bytes.
struct PixelConv : IntegerConv {
  Layout x;             // as it is multiplied
  bool copies = false;  // x is not channels-last and is copied first

  explicit PixelConv(const StepFacts& facts) : IntegerConv(integer_conv_of(facts)) {
    x = facts.inputs[0].layout;
    copies = !has_pixels(x);
    if (!copies) return;
    const Sizes& s = x.sizes;
    x.strides = {s[1] * s[2] * s[3], 1, s[1] * s[3], s[1]};
  }

  const PatchAxis& rows() const { return patches.axes[0]; }
  const PatchAxis& line() const { return patches.axes[1]; }
#if defined(ORTM_CHANNEL_QUADS)
  bool sums_quads() const { return groups >= ChannelQuads::kLeastChannels; }
#endif
  bool by_channel() const { return channels == 1 && outputs == 1; }
  int64_t all_outputs() const { return groups * outputs; }
  int64_t all_pixels() const { return images * patches.pixels; }

  int64_t matrix_bytes() const { return integer_panel_bytes(inner(), outputs); }
  /// Of pixels beside the image, of which a line of a window reads as many as it has places.
  int64_t beside_bytes() const {
    return aligned(groups * channels * patches.last().places() + kAlignment);
  }
  int64_t terms_bytes() const { return aligned(all_outputs() * 4) + kAlignment; }
  int64_t image_bytes() const { return copies ? aligned(element_count(x.sizes)) : 0; }
  int64_t given_weight_bytes() const { return aligned(all_outputs() * inner() * 4); }
  int64_t weight_bytes() const {
    if (by_channel()) return given_weight_bytes() + aligned(channel_bytes());
    return packed ? 0 : aligned(groups * matrix_bytes()) + aligned(packing_scratch_bytes(*this));
  }

 private:
  /// Of weights as they are read, where each channel makes one output.
  int64_t channel_bytes() const {
    int64_t most = ChannelSums::weight_bytes(groups, patches.places);
#if defined(ORTM_CHANNEL_QUADS)
    if (sums_quads()) most = std::max(most, ChannelQuads::bytes(groups, rows(), line()));
#endif
    return most;
  }
};

/// The windows of output pixels, in the order of the weights: places, and channels of the group.
class Windows {
 public:
  /// `beside`: pixels of what lies around the image.
  Windows(const PixelConv& conv, const uint8_t* x, const uint8_t* beside)
      : conv_(conv), x_(x), beside_(beside), rows_(conv.rows()), line_(conv.line()) {
    const Sizes& strides = conv.x.strides;
    image_stride_ = strides[0];
    row_stride_ = strides[2];
    pixel_stride_ = strides[3];
    for (const int64_t row : rows_.offsets)
      for (const int64_t column : line_.offsets)
        offsets_.push_back(row * row_stride_ + column * pixel_stride_);
    bool in_turn = pixel_stride_ == conv.channels;
    for (size_t k = 1; k < line_.offsets.size(); ++k)
      in_turn = in_turn && line_.offsets[k] == line_.offsets[k - 1] + 1;
    lines_are_runs_ = in_turn;
    is_image_ = conv.patches.is_image() && row_stride_ == line_.in * pixel_stride_ &&
                (conv.images == 1 || image_stride_ == rows_.in * row_stride_);
  }

  /// Sets `part` to places [first, first + count) of the windows of some pixels as they lie; runs
  /// that reach beyond the image are copied to `to`. False: they must all be copied.
  template <class Tile>
  bool find(int64_t pixel, int64_t pixels, int64_t group, int64_t first, int64_t count, uint8_t* to,
            typename Tile::Rows& part) const {
    if (shares_cache_lines(line_.stride * pixel_stride_)) return false;
    if (is_image_) {
      if (!Tile::are_steps(count)) return false;
      part.set(x_ + pixel * pixel_stride_ + group * conv_.channels + first, pixel_stride_, pixels,
               count);
      return true;
    }
    const int64_t run = run_length(), first_run = first / run, skipped = first % run;
    part.parts = ceil_div(skipped + count, run);
    if (!Tile::are_steps(run) || part.parts > Tile::Rows::kMostParts) return false;
    for (int64_t p = 0, k = skipped; p < part.parts; ++p, k = 0, count -= part.inner[p - 1])
      part.inner[p] = std::min(run - k, count);
    At at = at_of(pixel);
    for (int64_t i = 0; i < pixels; ++i, to += Tile::kLeftStride, step(at)) {
      uint8_t* copy = to;
      for (int64_t p = 0; p < part.parts; copy += part.inner[p++])
        part.at[p][i] = run_of(at, first_run + p, group * conv_.channels + (p ? 0 : skipped),
                               part.inner[p], copy);
    }
    return true;
  }

  /// Copies places [first, first + count) of the window of `pixel`, xor `flip`.
  template <class Left>
  void copy(int64_t pixel, int64_t group, int64_t first, int64_t count, uint8_t flip,
            Left* to) const {
    if (is_image_) {
      copy_bytes(x_ + pixel * pixel_stride_ + group * conv_.channels + first, count, to);
      return flip_bytes(flip, count, to);
    }
    const At at = at_of(pixel);
    const int64_t channels = conv_.channels, line = line_.places();
    if (!lines_are_runs_ && channels <= kFewChannels && first % channels == 0 &&
        count % channels == 0 && sees(at)) {
      const uint8_t* from = place_of(at) + group * channels;
      const int64_t* offset = offsets_.data() + first / channels;
      for (int64_t k = 0; k < count; k += channels) copy_bytes(from + *offset++, channels, to + k);
      return flip_bytes(flip, count, to);
    }
    const bool is_run = lines_are_runs_ && sees_inside(line_, at.column);
    const int64_t run = is_run ? line * channels : channels;  // that lies together
    for (int64_t k = first, end = first + count; k < end;) {
      const int64_t skipped = k % run, length = std::min(run - skipped, end - k);
      const int64_t place = k / run * (is_run ? line : 1);
      const uint8_t* from = pixel_at(at, place / line, place % line) + group * channels + skipped;
      copy_bytes(from, length, to);
      to += length;
      k += length;
    }
    flip_bytes(flip, count, to - count);
  }

#if defined(ORTM_CHANNEL_QUADS)
  /// Where tiles of outputs find what they share (ChannelQuads): in the image, or beside it.
  class Tiles {
   public:
    Tiles(const Windows& windows, const ChannelQuads::Reach& reach)
        : windows_(windows), reach_(reach) {
      for (const int64_t row : windows.rows_.offsets)
        for (const int64_t column : reach.columns)
          inside_.push_back(row * windows.row_stride_ + column * windows.pixel_stride_);
      tiles_.resize(static_cast<size_t>(ceil_div(windows.line_.out, reach.outputs)));
      beside_.resize(tiles_.size() * inside_.size());
    }

    /// The tiles of a line of outputs, counted over all images.
    const ChannelQuads::Tile* of_line(int64_t line) {
      const PatchAxis &rows = windows_.rows_, &columns = windows_.line_;
      int64_t* offsets = beside_.data();
      for (size_t t = 0; t < tiles_.size(); ++t) {
        const int64_t first = static_cast<int64_t>(t) * reach_.outputs;
        const At at{windows_.x_ + line / rows.out * windows_.image_stride_,
                    line % rows.out * rows.stride, first * columns.stride};
        if (sees_inside(rows, at.row) && at.column + reach_.columns.front() >= 0 &&
            at.column + reach_.columns.back() < columns.in) {
          tiles_[t] = {windows_.place_of(at), inside_.data()};
          continue;
        }
        tiles_[t] = {at.image, offsets};
        for (const int64_t row : rows.offsets)
          for (const int64_t column : reach_.columns)
            *offsets++ = reinterpret_cast<intptr_t>(
                             windows_.pixel_of(at.image, at.row + row, at.column + column)) -
                         reinterpret_cast<intptr_t>(at.image);
      }
      return tiles_.data();
    }

   private:
    const Windows& windows_;
    const ChannelQuads::Reach& reach_;
    std::vector<int64_t> inside_, beside_;
    std::vector<ChannelQuads::Tile> tiles_;
  };
#endif

  /// Where the pixels of all places lie.
  void find(int64_t pixel, const uint8_t** places) const {
    const At at = at_of(pixel);
    if (sees(at)) {
      for (const int64_t offset : offsets_) *places++ = place_of(at) + offset;
      return;
    }
    for (int64_t i = 0; i < rows_.places(); ++i)
      for (int64_t j = 0; j < line_.places(); ++j) *places++ = pixel_at(at, i, j);
  }

 private:
  template <class Left>
  static void copy_bytes(const uint8_t* from, int64_t count, Left* to) {
    if constexpr (sizeof(Left) == 1) {
      if (count > kFewChannels) {
        std::memcpy(to, from, static_cast<size_t>(count));
        return;
      }
      // Of a few channels, for which a call would take longer; the last ones overlap.
      if (count >= 8) {
        int64_t k = 0;
        for (; k + 16 <= count; k += 16) std::memcpy(to + k, from + k, 16);
        if (k + 8 <= count) std::memcpy(to + k, from + k, 8);
        std::memcpy(to + count - 8, from + count - 8, 8);
        return;
      }
    }
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }

  template <class Left>
  static void flip_bytes(uint8_t flip, int64_t count, Left* bytes) {
    if (flip == 0) return;
    for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<Left>(bytes[i] ^ flip);
  }

  /// What the first place of an unpadded window sees.
  struct At {
    const uint8_t* image;
    int64_t row, column;
  };

  static constexpr int64_t kFewChannels = 64;  // of a group

  static bool sees_inside(const PatchAxis& axis, int64_t at) {
    return at + axis.offsets.front() >= 0 && at + axis.offsets.back() < axis.in;
  }

  /// Whether all places of a window are in the image.
  bool sees(const At& at) const {
    return sees_inside(rows_, at.row) && sees_inside(line_, at.column);
  }
  const uint8_t* place_of(const At& at) const {
    return at.image + at.row * row_stride_ + at.column * pixel_stride_;
  }

  At at_of(int64_t pixel) const {
    const int64_t image = pixel / conv_.patches.pixels, rest = pixel % conv_.patches.pixels;
    return {x_ + image * image_stride_, rest / line_.out * rows_.stride,
            rest % line_.out * line_.stride};
  }

  /// The next pixel.
  void step(At& at) const {
    at.column += line_.stride;
    if (at.column < line_.out * line_.stride) return;
    at.column = 0;
    at.row += rows_.stride;
    if (at.row < rows_.out * rows_.stride) return;
    at.row = 0;
    at.image += image_stride_;
  }

  /// Elements of windows that lie together: of a line, or of a place.
  int64_t run_length() const {
    return lines_are_runs_ ? line_.places() * conv_.channels : conv_.channels;
  }
  /// Where `count` elements from `skipped` on of a run are, which is copied if some of it is not in
  /// the image.
  const uint8_t* run_of(const At& at, int64_t run, int64_t skipped, int64_t count,
                        uint8_t* to) const {
    if (!lines_are_runs_) return pixel_at(at, run / line_.places(), run % line_.places()) + skipped;
    const int64_t row = at.row + rows_.offsets[static_cast<size_t>(run)];
    if (row < 0 || row >= rows_.in) return beside_ + skipped;
    const uint8_t* line = at.image + row * row_stride_ + skipped;
    if (sees_inside(line_, at.column))
      return line + (at.column + line_.offsets.front()) * pixel_stride_;
    copy_run(at, run, skipped, count, to);
    return to;
  }
  void copy_run(const At& at, int64_t run, int64_t skipped, int64_t count, uint8_t* to) const {
    const int64_t channels = conv_.channels;
    for (const int64_t end = skipped + count; skipped < end;) {
      const int64_t place = skipped / channels, inside = skipped % channels;
      const int64_t length = std::min(channels - inside, end - skipped);
      copy_bytes(pixel_at(at, run, place) + inside, length, to);
      to += length;
      skipped += length;
    }
  }

  const uint8_t* pixel_at(const At& at, int64_t i, int64_t j) const {
    return pixel_of(at.image, at.row + rows_.offsets[static_cast<size_t>(i)],
                    at.column + line_.offsets[static_cast<size_t>(j)]);
  }
  const uint8_t* pixel_of(const uint8_t* image, int64_t row, int64_t column) const {
    if (row < 0 || row >= rows_.in || column < 0 || column >= line_.in) return beside_;
    return image + row * row_stride_ + column * pixel_stride_;
  }

  const PixelConv& conv_;
  const uint8_t *x_, *beside_;
  const PatchAxis &rows_, &line_;
  int64_t image_stride_, row_stride_, pixel_stride_;
  std::vector<int64_t> offsets_;  // of places
  bool lines_are_runs_ = false;
  bool is_image_ = false;  // windows are pixels, which lie in turn
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
