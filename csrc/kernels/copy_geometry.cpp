#include "kernels/copy_geometry.h"

#include <algorithm>

#include "kernels/axis.h"
#include "kernels/iteration.h"

namespace ortmodule {

CopyGeometry contiguous_geometry(const StepFacts& facts) {
  const Layout& to = facts.outputs.at(0).layout;
  return {to.sizes, to.strides, broadcast_strides(facts.inputs.at(0).layout, to.sizes)};
}

std::vector<Sizes> concat_strides(const StepFacts& facts) {
  const Layout& y = facts.outputs[0].layout;
  const bool channels_last =
      std::all_of(facts.inputs.begin(), facts.inputs.end(), [](const OperandFacts& x) {
        return is_channels_last(x.layout) || is_channels_last_slice(x.layout);
      });
  return {channels_last ? strides_like(y.sizes, facts.inputs[0].layout) : y.strides};
}

std::vector<CopyGeometry> concat_geometry(const StepFacts& facts) {
  const Layout& y = facts.outputs[0].layout;
  const auto axis =
      static_cast<size_t>(normalized_axis(facts.node().attrs.integer("axis"), y.sizes.size()));
  std::vector<CopyGeometry> parts;
  int64_t at = 0;
  for (const OperandFacts& x : facts.inputs) {
    parts.push_back({x.layout.sizes, y.strides, x.layout.strides, at * y.strides[axis]});
    at += x.layout.sizes[axis];
  }
  return parts;
}

CopyGeometry pad_geometry(const StepFacts& facts) {
  const Layout &x = facts.inputs[0].layout, &y = facts.outputs[0].layout;
  const std::vector<int64_t> pads = facts.node().attrs.integers("pads");
  const size_t rank = x.sizes.size();
  CopyGeometry geometry{Sizes(rank), contiguous_strides(y.sizes), x.strides};
  for (size_t d = 0; d < rank; ++d) {
    const int64_t before = pads[d], after = pads[rank + d];
    const int64_t cut_before = std::max<int64_t>(-before, 0);
    const int64_t cut_after = std::max<int64_t>(-after, 0);
    geometry.sizes[d] = std::max<int64_t>(0, x.sizes[d] - cut_before - cut_after);
    geometry.from_offset += cut_before * x.strides[d];
    geometry.to_offset += std::max<int64_t>(before, 0) * geometry.to[d];
  }
  return geometry;
}

CopyGeometry slice_grad_geometry(const StepFacts& facts) {
  const Layout &dy = facts.inputs[0].layout, &dx = facts.outputs[0].layout;
  const Attrs& attrs = facts.node().attrs;
  const auto axis = static_cast<size_t>(normalized_axis(attrs.integer("axis"), dx.sizes.size()));
  CopyGeometry geometry{dy.sizes, contiguous_strides(dx.sizes), dy.strides};
  geometry.to_offset = attrs.integer("start") * geometry.to[axis];
  geometry.to[axis] *= attrs.integer("step", 1);
  return geometry;
}

Reason copy_unsupported(const StepFacts& facts) {
  if (real_rank(facts.outputs[0].layout.sizes) > kMaxRank)
    return str("it takes at most ", kMaxRank, " dimensions");
  return {};
}

Reason contiguous_unsupported(const StepFacts& facts) {
  if (facts.inputs.at(0).dtype != facts.outputs.at(0).dtype) return "it does not convert types";
  return copy_unsupported(facts);
}

Reason pad_unsupported(const StepFacts& facts) {
  if (is_complex(facts.inputs[0].dtype) && facts.node().attrs.number("value", 0.0) != 0)
    return "a complex padding is not zero";
  return copy_unsupported(facts);
}

}  // namespace ortmodule
