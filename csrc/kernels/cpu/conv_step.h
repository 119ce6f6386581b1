// The shape and the activation of a step of Conv or FusedConv.
#pragma once

#include "kernels/cpu/conv_finish.h"
#include "kernels/cpu/conv_shape.h"
#include "kernels/cpu/cpu_kernel.h"

namespace ortmodule {
inline namespace ORTM_ISA {

struct ConvStep {
  ConvShape shape;
  ConvActivation activation;
  bool packed = false;  // w
};

inline ConvActivation activation_of(const Attrs& attrs) {
  using Kind = ConvActivation::Kind;
  const std::string name = attrs.has("activation") ? attrs.string("activation") : "";
  const double infinity = std::numeric_limits<double>::infinity();
  if (name.empty()) return {Kind::Clip, -infinity, infinity};
  if (name == "Relu") return {Kind::Clip, 0, infinity};
  const double alpha = attrs.number("alpha", 0), beta = attrs.number("beta", 0);
  if (name == "Clip") return {Kind::Clip, alpha, beta};
  if (name == "LeakyRelu") return {Kind::LeakyRelu, alpha, 0};
  if (name == "Elu") return {Kind::Elu, alpha, 0};
  if (name == "HardSigmoid") return {Kind::HardSigmoid, 0, 0};
  if (name == "HardSwish") return {Kind::HardSwish, 0, 0};
  if (name == "Sigmoid") return {Kind::Sigmoid, 0, 0};
  if (name == "Silu") return {Kind::Silu, 0, 0};
  if (name == "Tanh") return {Kind::Tanh, 0, 0};
  if (name == "Mish") return {Kind::Mish, 0, 0};
  throw InternalError(str("no convolution applies ", name));
}

/// What the facts say; how the work is cut is still to be planned.
inline ConvStep conv_step(const StepFacts& facts) {
  const Layout &x = facts.inputs[0].layout, &w = facts.inputs[1].layout,
               &y = facts.outputs[0].layout;
  const Attrs& attrs = facts.node().attrs;
  const size_t spatial = x.sizes.size() - 2;
  const std::vector<int64_t> strides = attrs.integers("strides"), pads = attrs.integers("pads"),
                             dilations = attrs.integers("dilations");
  ConvStep step;
  // Packed weights: [groups x blocks, places..., channels, outputs of a block].
  step.packed = attrs.has("packed_outputs") && attrs.integer("packed_outputs") > 0;
  step.shape.half_weights = step.packed && facts.inputs[1].dtype == DType::Float16;
  const size_t first_place = step.packed ? 1 : 2;
  std::vector<PatchAxis> axes(spatial);
  for (size_t d = 0; d < spatial; ++d) {
    axes[d] = {x.sizes[d + 2], y.sizes[d + 2], strides[d], {}};
    for (int64_t k = 0; k < w.sizes[d + first_place]; ++k)
      axes[d].offsets.push_back(k * dilations[d] - pads[d]);
  }
  ConvShape& shape = step.shape;
  shape.images = x.sizes[0];
  shape.groups = attrs.integer("group");
  shape.channels = step.packed ? w.sizes[spatial + 1] : w.sizes[1];
  shape.outputs = shape.groups == 0 ? 0 : y.sizes[1] / shape.groups;
  shape.patches = PatchShape(std::move(axes));
  step.activation = activation_of(attrs);
  return step;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
