// What Conv and ConvTranspose share: sizes, and the images and groups as units of work.
#pragma once

#include <memory>

#include "kernels/cpu/patches.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// A convolution; channels and outputs are those of a group.
struct ConvShape {
  int64_t images = 0, groups = 1, channels = 0, outputs = 0;
  PatchShape patches;
};

/// An image's channels and outputs of one group.
template <class T>
struct ConvGroup {
  int64_t group = 0;
  const T* x = nullptr;
  const T* bias = nullptr;  // null without one
  T* y = nullptr;

  ComputeOf<T> term(int64_t output) const {
    return bias ? computed(bias[output]) : ComputeOf<T>(0);
  }
};

inline Reason convolution_dimensions_unsupported(const StepFacts& facts) {
  if (facts.inputs[0].layout.sizes.size() - 2 > kMostSpatial)
    return str("it takes at most ", kMostSpatial, " spatial dimensions");
  return {};
}

/// body(group, first, last) for ranges of the `units` of every image and group that cover them all.
template <class T, class Body>
void for_each_group(const KernelArgs& args, const ConvShape& s, int64_t units, const Body& body) {
  if (units == 0) return;
  const Layout &x = args.facts.inputs[0].layout, &y = args.facts.outputs[0].layout;
  int64_t in_pixels = 1, out_pixels = 1;
  for (size_t d = 2; d < x.sizes.size(); ++d) {
    in_pixels *= x.sizes[d];
    out_pixels *= y.sizes[d];
  }
  const bool has_bias = args.in.size() > 2 && args.in[2].data;
  // Multiplications worth waking a thread.
  constexpr int64_t kGrain = 1 << 20;
  const int64_t all = s.outputs * s.channels * s.patches.places * s.patches.pixels;
  const int64_t grain = ceil_div(kGrain, std::max<int64_t>(1, ceil_div(all, units)));
  parallel_ranges(args.context, s.images * s.groups * units, grain,
                  [&](int64_t begin, int64_t end) {
                    while (begin < end) {
                      const int64_t i = begin / units, first = begin % units;
                      const int64_t count = std::min(units - first, end - begin);
                      ConvGroup<T> group;
                      group.group = i % s.groups;
                      group.x = args.in[0].as<T>() + i * s.channels * in_pixels;
                      if (has_bias) group.bias = args.in[2].as<T>() + group.group * s.outputs;
                      group.y = args.out[0].as<T>() + i * s.outputs * out_pixels;
                      body(group, first, first + count);
                      begin += count;
                    }
                  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
