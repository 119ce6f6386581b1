// MaxPoolGrad of any number of dimensions; pool.cpp has the fast one of images. Method: a plane of
// dx is zeroed, then each dy is added at the place of its window, in the order of the windows.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "kernels/cpu/pool_windows.h"
#include "kernels/dtype_dispatch.h"
#include "kernels/pool.h"
#include "kernels/scalar_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// Where the elements of a plane of dy go.
struct Scattering {
  std::vector<PoolAxis> axes;
  Sizes strides;                 // of a plane of dx
  std::vector<int64_t> offsets;  // of a place, from that of the first one
  int64_t pixels = 1, in_pixels = 1, planes = 0;

  explicit Scattering(const StepFacts& facts) {
    const Sizes &dy = facts.inputs[0].layout.sizes, &dx = facts.outputs[0].layout.sizes;
    const Attrs& attrs = facts.node().attrs;
    planes = dy[0] * dy[1];
    const std::vector<int64_t> kernel = attrs.integers("kernel_shape");
    for (size_t d = 0; d < kernel.size(); ++d) {
      axes.push_back({dx[d + 2], dy[d + 2], kernel[d], attrs.integers("strides")[d],
                      attrs.integers("pads")[d], attrs.integers("dilations")[d]});
      pixels *= dy[d + 2];
    }
    strides.resize(axes.size());
    for (size_t d = axes.size(); d-- > 0; in_pixels *= axes[d].in) strides[d] = in_pixels;
    offsets.assign(1, 0);
    for (size_t d = 0; d < axes.size(); ++d) {
      std::vector<int64_t> longer;
      for (const int64_t outer : offsets)
        for (int64_t k = 0; k < axes[d].kernel; ++k)
          longer.push_back(outer + k * axes[d].dilation * strides[d]);
      offsets = std::move(longer);
    }
  }

  /// Of the first place of the windows in line `line` of dy, as far as it has outer dimensions.
  int64_t line_start(int64_t line) const {
    int64_t at = 0;
    for (size_t d = axes.size() - 1; d-- > 0; line /= axes[d].out)
      at += (line % axes[d].out * axes[d].stride - axes[d].pad) * strides[d];
    return at;
  }
};

template <class T>
void scatter_plane(const Scattering& s, const T* dy, const uint8_t* places, T* dx) {
  std::fill_n(dx, s.in_pixels, T{});
  const PoolAxis& last = s.axes.back();
  for (int64_t line = 0; line * last.out < s.pixels; ++line) {
    const int64_t start = s.line_start(line) - last.pad;
    for (int64_t i = 0; i < last.out; ++i) {
      const int64_t at = line * last.out + i;
      if (places[at] == kNoPlace) continue;
      T& sum = dx[start + i * last.stride + s.offsets[places[at]]];
      sum = stored<T>(computed(sum) + computed(dy[at]));
    }
  }
}

void max_pool_grad(const KernelArgs& args) {
  const Scattering& s = *static_cast<const Scattering*>(args.prepared);
  dispatch_float(args.in[0].dtype, [&]<class T> {
    const T* dy = args.in[0].as<T>();
    const auto* places = args.in[1].as<uint8_t>();
    T* dx = args.out[0].as<T>();
    parallel_ranges(args.context, s.planes, grain_for(2 * s.in_pixels),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t plane = begin; plane < end; ++plane)
                        scatter_plane(s, dy + plane * s.pixels, places + plane * s.pixels,
                                      dx + plane * s.in_pixels);
                    });
  });
}

REGISTER_CPU_KERNEL({.op = "MaxPoolGrad",
                     .name = "max_pool_plain_grad_cpu",
                     .dtypes = kAllFloats,
                     .run = max_pool_grad,
                     .prepare = [](const StepFacts& facts) -> std::shared_ptr<const void> {
                       return std::make_shared<const Scattering>(facts);
                     },
                     .priority = -2});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
