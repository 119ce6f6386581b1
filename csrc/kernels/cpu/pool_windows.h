// The windows of pools of any number of dimensions.
#pragma once

#include <memory>

#include "kernels/cpu/patches.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// The windows of a step from x [N, C, ...] to y [N, C, ...].
inline PatchShape pool_windows(const StepFacts& facts) {
  const Sizes &in = facts.inputs[0].layout.sizes, &out = facts.outputs[0].layout.sizes;
  const Attrs& attrs = facts.node().attrs;
  const std::vector<int64_t> kernel = attrs.integers("kernel_shape"),
                             strides = attrs.integers("strides"), pads = attrs.integers("pads");
  std::vector<int64_t> dilations(kernel.size(), 1);
  if (attrs.has("dilations")) dilations = attrs.integers("dilations");
  std::vector<PatchAxis> axes(kernel.size());
  for (size_t d = 0; d < axes.size(); ++d) {
    axes[d] = {in[d + 2], out[d + 2], strides[d], {}};
    for (int64_t k = 0; k < kernel[d]; ++k) axes[d].offsets.push_back(k * dilations[d] - pads[d]);
  }
  return PatchShape(std::move(axes));
}

inline Reason pool_dimensions_unsupported(const StepFacts& facts) {
  if (facts.node().attrs.integers("kernel_shape").size() > kMostSpatial)
    return str("it takes at most ", kMostSpatial, " spatial dimensions");
  return {};
}

/// body(plane, first, count) for ranges of output pixels that cover all planes (images and
/// channels).
template <class Body>
void for_each_plane_chunk(const KernelArgs& args, const PatchShape& s, const Body& body) {
  const int64_t chunk = pixel_chunk(s), chunks = ceil_div(s.pixels, chunk);
  const Sizes& sizes = args.facts.inputs[0].layout.sizes;
  parallel_ranges(args.context, sizes[0] * sizes[1] * chunks,
                  grain_for(std::min(chunk, s.pixels) * s.places), [&](int64_t begin, int64_t end) {
                    for (int64_t unit = begin; unit < end; ++unit) {
                      const int64_t first = unit % chunks * chunk;
                      body(unit / chunks, first, std::min(chunk, s.pixels - first));
                    }
                  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
