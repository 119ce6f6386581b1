// What the integer convolutions of both layouts know of a step.
#pragma once

#include <tuple>

#include "base/integer_conv_weights.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/patches.h"

namespace ortmodule {
inline namespace ORTM_ISA {

inline constexpr uint8_t kSignBit = 0x80;
inline constexpr int64_t kAlignment = 64;  // of parts of the workspace, in bytes

inline int64_t aligned(int64_t bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }

struct IntegerConv {
  int64_t images = 0, groups = 1;
  int64_t channels = 0, outputs = 0;  // of a group
  PatchShape patches;
  bool unsigned_x = false, signed_w = false;
  bool packed = false;  // w is made by PackIntegerConvWeights
  IntegerConvWeights weights;
  bool scales = false;

  int64_t inner() const { return channels * patches.places; }
};

inline IntegerConvWeights integer_weights_of(const Sizes& w) {
  return {w[0], w[1], element_count({w.begin() + 2, w.end()})};
}

inline IntegerConv integer_conv_of(const StepFacts& facts) {
  const Layout &x = facts.inputs[0].layout, &y = facts.outputs[0].layout;
  const Attrs& attrs = facts.node().attrs;
  IntegerConv conv;
  conv.packed = attrs.has("w_dims");
  const Sizes w = conv.packed ? Sizes(attrs.integers("w_dims")) : facts.inputs[1].layout.sizes;
  const std::vector<int64_t> strides = attrs.integers("strides"), pads = attrs.integers("pads"),
                             dilations = attrs.integers("dilations");
  std::vector<PatchAxis> axes(x.sizes.size() - 2);
  for (size_t d = 0; d < axes.size(); ++d) {
    axes[d] = {x.sizes[d + 2], y.sizes[d + 2], strides[d], {}};
    for (int64_t k = 0; k < w[d + 2]; ++k) axes[d].offsets.push_back(k * dilations[d] - pads[d]);
  }
  conv.images = x.sizes[0];
  conv.groups = attrs.integer("group");
  conv.channels = w[1];
  conv.outputs = w[0] / conv.groups;
  conv.patches = PatchShape(std::move(axes));
  conv.weights = integer_weights_of(w);
  conv.scales = facts.node().op == "ConvIntegerToFloat";
  conv.unsigned_x = facts.inputs[0].dtype == DType::UInt8;
  const DType w_type = conv.packed ? attrs.dtype("w_type") : facts.inputs[1].dtype;
  conv.signed_w = w_type == DType::Int8;
  return conv;
}

/// Operands beside x and w, by the step's op.
struct IntegerConvPlaces {
  int x_zero = 2, w_zero = 3, x_scale = -1, w_scale = -1, bias = -1, y_scale = -1, y_zero = -1;
  explicit IntegerConvPlaces(const IntegerConv& conv) {
    if (!conv.scales) return;
    std::tie(x_scale, w_scale, x_zero, w_zero, bias, y_scale, y_zero) =
        std::tuple(2, 3, 4, 5, 6, 7, 8);
  }
};

/// Whether prefer_channels_last marked the step.
inline bool is_marked_channels_last(const StepFacts& facts) {
  return facts.node().attrs.integer("channels_last", 0) != 0;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
