// Conv of x [N, C, ...] and w [O, C / groups, ...], for programs without torch and for padding that
// torch's convolution does not take:
//   y[n, o, p] = bias[o] + sum over channels i of the group and places k of w[o, i, k] x[n, i,
//   p(k)]
// Method: for each image and group a product of w with the matrix of the windows, which is packed
// where it is wanted (patches.h). Where a channel makes a few outputs only (depthwise), the lines
// of an output are sums of shifted lines of its channel.
#include "kernels/cpu/conv_shape.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

std::shared_ptr<const void> prepare_conv(const StepFacts& facts) {
  const Layout &x = facts.inputs[0].layout, &w = facts.inputs[1].layout,
               &y = facts.outputs[0].layout;
  const Attrs& attrs = facts.node().attrs;
  const size_t spatial = x.sizes.size() - 2;
  const std::vector<int64_t> strides = attrs.integers("strides"), pads = attrs.integers("pads"),
                             dilations = attrs.integers("dilations");
  std::vector<PatchAxis> axes(spatial);
  for (size_t d = 0; d < spatial; ++d) {
    axes[d] = {x.sizes[d + 2], y.sizes[d + 2], strides[d], {}};
    for (int64_t k = 0; k < w.sizes[d + 2]; ++k)
      axes[d].offsets.push_back(k * dilations[d] - pads[d]);
  }
  auto shape = std::make_shared<ConvShape>();
  shape->images = x.sizes[0];
  shape->groups = attrs.integer("group");
  shape->channels = w.sizes[1];
  shape->outputs = shape->groups == 0 ? 0 : w.sizes[0] / shape->groups;
  shape->patches = PatchShape(std::move(axes));
  return shape;
}

template <class T>
void multiply_windows(const KernelArgs& args, const ConvShape& s) {
  using C = ComputeOf<T>;
  const int64_t inner = s.channels * s.patches.places, pixels = s.patches.pixels;
  const TiledProduct<C> product(s.outputs, pixels, inner);
  for_each_group<
      T>(args, s, product.units(), [&](const ConvGroup<T>& at, int64_t begin, int64_t end) {
    const T* w = args.in[1].as<T>() + at.group * s.outputs * inner;
    const auto left = [&](int64_t row, int64_t rows, int64_t first, int64_t count, C* to) {
      pack_left_rows(StridedMatrix<const T>{w + row * inner + first, rows, count, inner, 1}, to);
    };
    const auto right = [&](int64_t first, int64_t count, int64_t column, int64_t width, C* to) {
      pack_patches(s.patches, at.x, first, count, column, width, to);
    };
    const auto store = [&](int64_t row, int64_t rows, int64_t column, int64_t width, const C* sums,
                           int64_t stride) {
      for (int64_t r = 0; r < rows; ++r, sums += stride) {
        const C term = at.term(row + r);
        T* y = at.y + (row + r) * pixels + column;
        ORTM_SIMD
        for (int64_t j = 0; j < width; ++j) y[j] = stored<T>(sums[j] + term);
      }
    };
    product.run(begin, end, left, right, store);
  });
}

// --- depthwise -----------------------------------------------------------------------------------
/// Output pixels [begin, begin + count) of a plane, at most kRowChunk.
template <class T>
void sum_places(const PatchShape& s, const T* image, const T* w, ComputeOf<T> term, int64_t begin,
                int64_t count, T* y) {
  using C = ComputeOf<T>;
  C sums[kRowChunk];
  std::fill_n(sums, count, term);
  const int64_t stride = s.last().stride;
  for_each_place(s, image, begin, count, [&](int64_t place, const T* from, int64_t at, int64_t n) {
    const C factor = computed(w[place]);
    C* to = sums + at;
    if (stride == 1) {
      ORTM_SIMD
      for (int64_t i = 0; i < n; ++i) to[i] += factor * computed(from[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] += factor * computed(from[i * stride]);
    }
  });
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) y[i] = stored<T>(sums[i]);
}

template <class T>
void convolve_depthwise(const KernelArgs& args, const ConvShape& s) {
  const PatchShape& p = s.patches;
  const int64_t chunk = pixel_chunk(p), chunks = ceil_div(p.pixels, chunk);
  for_each_group<T>(
      args, s, s.outputs * chunks, [&](const ConvGroup<T>& at, int64_t begin, int64_t end) {
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t output = unit / chunks, first = unit % chunks * chunk;
          const T* w = args.in[1].as<T>() + (at.group * s.outputs + output) * p.places;
          sum_places(p, at.x, w, at.term(output), first, std::min(chunk, p.pixels - first),
                     at.y + output * p.pixels + first);
        }
      });
}

void conv(const KernelArgs& args) {
  const auto& s = *static_cast<const ConvShape*>(args.prepared);
  constexpr int64_t kFewOutputs = 3;
  const bool depthwise = s.channels == 1 && s.outputs <= kFewOutputs;
  dispatch_float(args.in[0].dtype, [&]<class T> {
    depthwise ? convolve_depthwise<T>(args, s) : multiply_windows<T>(args, s);
  });
}

REGISTER_CPU_KERNEL({.op = "Conv",
                     .name = "conv_cpu",
                     .dtypes = kAllFloats,
                     .run = conv,
                     .unsupported = convolution_dimensions_unsupported,
                     .prepare = prepare_conv,
                     .priority = -1});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
