// The sizes of a convolution, and how its work is cut: bands of output lines whose part of the
// image is laid out once, and pieces of the sum that every output is made of.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/patches.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// One spatial dimension of a band: neighbouring positions lie `step` apart in the image,
/// neighbouring outputs `hop` positions apart in the band. Offsets of places ascend.
struct BandAxis {
  PatchAxis patch;
  int64_t step = 1, hop = 1;
  // Whether a band has what the outputs see at each place as a part of its own, for places that lie
  // farther apart than the outputs of a band.
  bool apart = false;

  BandAxis() : BandAxis(PatchAxis{1, 1, 1, {0}}) {}
  explicit BandAxis(PatchAxis axis) : patch(std::move(axis)), hop(patch.stride) {
    // With one place the positions between strides are never seen.
    if (patch.places() == 1) {
      step = patch.stride;
      hop = 1;
    }
  }
  int64_t places() const { return patch.places(); }
  /// Position in the band of place k of the first output.
  int64_t place(int64_t k) const {
    return patch.offsets[static_cast<size_t>(k)] - patch.offsets.front();
  }
  /// From the first place to the last.
  int64_t reach() const { return place(places() - 1); }
  /// Positions that `outputs` neighbours see, in each part.
  int64_t span(int64_t outputs) const { return (outputs - 1) * hop + (apart ? 0 : reach()) + 1; }
  int64_t parts() const { return apart ? places() : 1; }
  void set_apart() {
    apart = true;
    step = patch.stride;
    hop = 1;
  }
  /// Position in the image of the first one in a band that begins with this output.
  int64_t origin(int64_t output) const { return output * patch.stride + patch.offsets.front(); }
};

/// A part of the sum: `length` elements from `begin` on of each of `runs` runs. Elements that are
/// `ahead` of these come next, but as far ahead that the processor does not expect them; or 0.
struct SumPiece {
  int64_t first_run = 0, runs = 0, begin = 0, length = 0, ahead = 0;
};

/// Outputs of one outer position: `rows` lines from `row` on, and `columns` outputs of each from
/// `column` on.
struct ImageBand {
  int64_t outer = 0, row = 0, rows = 0, column = 0, columns = 0;
  int64_t pixels() const { return rows * columns; }
};

/// How a convolution is computed: as a product with the image itself, as an implicit product whose
/// vectors hold outputs (conv_product.h), or with vectors of neighbouring pixels (conv_lines.h).
enum class ConvMethod : uint8_t { Image, Product, Lines };

/// A convolution; channels and outputs are those of a group.
struct ConvShape {
  int64_t images = 0, groups = 1, channels = 0, outputs = 0;
  PatchShape patches;
  ConvMethod method = ConvMethod::Product;
  std::vector<BandAxis> outer;  // all dimensions but the last two
  BandAxis row, column;
  int64_t outer_outputs = 1, outer_places = 1;

  // A band: at most so many lines of so many outputs. In memory it has a line for each outer place
  // and position along `row`.
  int64_t band_rows = 1, band_columns = 1, row_bands = 1, column_bands = 1;
  int64_t row_span = 0, line_elements = 0, band_elements = 0;
  // Outputs are divided among so many units of a band.
  int64_t parts = 1;

  // Whether images are pixels of channels (conv_pixels.h), all groups side by side, and x is read
  // as it lies, since no window reaches beyond it.
  bool is_pixel_major = false, in_place = false;
  // Of windows with gaps (dilated): each place is sought in the image as it lies, or in zeros where
  // it lies beside it. A band with all the gaps in it would be far larger than the image.
  bool seeks_pixels = false;
  // Then the distances of neighbours in x, in elements: it may be a slice of another image.
  int64_t x_image = 0, x_row = 0, x_pixel = 0;
  // Where results lie, in pixels of an image of y: the first, and steps between neighbours.
  int64_t y_first = 0, y_row_step = 0, y_column_step = 1, y_pixels = 0;

  // Whether packed weights have 16 bits (float16), and are widened where they are read.
  bool half_weights = false;

  // Of a Product: distance of neighbouring pixels; where in the band lie the elements that are
  // neighbours in the order of the sum; pieces of the sum.
  int64_t pixel_stride = 0, run_length = 0;
  std::vector<int64_t> runs;
  std::vector<SumPiece> pieces;

  // Of Lines: elements of the positions of a line that leave the same remainder modulo `hop`, and
  // where in the band each place of a window begins.
  int64_t phase_elements = 0;
  std::vector<int64_t> places;

  /// Elements of an output's sum.
  int64_t inner() const { return channels * patches.places; }
  /// Parts of x that are cut into bands.
  int64_t planes() const { return is_pixel_major ? images : images * groups; }
  int64_t bands() const { return outer_outputs * row_bands * column_bands; }
  int64_t line_count() const { return outer_places * row_span; }
  /// Of a Product: where in a line the place k of a window begins.
  int64_t place_at(int64_t k) const {
    return column.apart ? k * (line_elements / column.parts()) : column.place(k) * pixel_stride;
  }

  ImageBand band(int64_t index) const {
    ImageBand band;
    band.column = index % column_bands * band_columns;
    band.columns = std::min(band_columns, column.patch.out - band.column);
    index /= column_bands;
    // Of nearly equal height.
    const int64_t at = index % row_bands;
    band.row = at * row.patch.out / row_bands;
    band.rows = (at + 1) * row.patch.out / row_bands - band.row;
    band.outer = index / row_bands;
    return band;
  }
  /// The first output pixel of a band; the others follow.
  int64_t first_pixel(const ImageBand& band) const {
    return (band.outer * row.patch.out + band.row) * column.patch.out + band.column;
  }

  /// body(line, at) for each line of a band: `at` is that of the image, -1 beside it.
  template <class Body>
  void for_each_line(const ImageBand& band, const Body& body) const {
    const int64_t top = row.origin(band.row), rows = row.span(band.rows);
    for (int64_t place = 0; place < outer_places; ++place) {
      bool inside = true;
      int64_t above = 0, scale = 1, output = band.outer, rest = place;
      for (size_t d = outer.size(); d-- > 0;) {
        const PatchAxis& axis = outer[d].patch;
        const int64_t at = output % axis.out * axis.stride +
                           axis.offsets[static_cast<size_t>(rest % axis.places())];
        output /= axis.out;
        rest /= axis.places();
        inside = inside && at >= 0 && at < axis.in;
        above += at * scale;
        scale *= axis.in;
      }
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = top + r * row.step;
        const bool exists = inside && at >= 0 && at < row.patch.in;
        body(place * row_span + r, exists ? above * row.patch.in + at : -1);
      }
    }
  }

  /// Whether all lines of a band lie in the image.
  bool is_inside(const ImageBand& band) const {
    bool inside = true;
    for_each_line(band, [&](int64_t, int64_t at) { inside = inside && at >= 0; });
    return inside;
  }

  /// Positions [first, last) of a line of `count` that lie inside the image, from `left` on.
  std::array<int64_t, 2> inside(int64_t left, int64_t count) const {
    const int64_t first = left < 0 ? ceil_div(-left, column.step) : 0;
    const int64_t last = left < column.patch.in ? ceil_div(column.patch.in - left, column.step) : 0;
    const int64_t begin = std::clamp<int64_t>(first, 0, count);
    return {begin, std::clamp(last, begin, count)};
  }
};

/// Whether each output is a sum over one channel of its own.
inline bool is_by_channel(const ConvShape& s) {
  return s.groups > 1 && s.channels == 1 && s.outputs == 1;
}

inline Reason convolution_dimensions_unsupported(const StepFacts& facts) {
  // Without sizes while a graph is lowered.
  if (facts.inputs[0].layout.sizes.size() > kMostSpatial + 2)
    return str("it takes at most ", kMostSpatial, " spatial dimensions");
  return {};
}

// --- steps on channels-last images ---------------------------------------------------------------
/// The channels of a pixel are neighbours: a channels-last image or a slice of one.
inline bool has_pixels(const Layout& layout) {
  return layout.sizes.size() == 4 && (layout.strides[1] == 1 || layout.sizes[1] == 1);
}

/// Why a step does not take and give channels-last images, or nothing.
inline Reason pixels_unsupported(const StepFacts& facts) {
  const Attrs& attrs = facts.node().attrs;
  if (!attrs.has("channels_last") || attrs.integer("channels_last") == 0)
    return "the convolution is not marked as channels-last";
  if (!has_pixels(facts.inputs[0].layout)) return "the channels of a pixel of x are no neighbours";
  return {};
}

inline std::vector<Sizes> pixel_strides(const StepFacts& facts) {
  const Sizes& y = facts.outputs[0].layout.sizes;
  return {{y[1] * y[2] * y[3], 1, y[1] * y[3], y[1]}};
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
