// MaxPool and MaxPoolGrad of channels-last volumes, or of any other number of dimensions but that
// of images, which pool.cpp has. Method: the channels of an output pixel are compared place by
// place of its window, vector by vector; the gradient adds each dy at its place, for some channels
// at a time. Of equal elements the first is taken, as in pool_plain.cpp. Bytes moved: x as often as
// the caches lose it, the rest once.
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/cpu/pool_windows.h"
#include "kernels/dtype_dispatch.h"
#include "kernels/pool.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// The windows of a step between the tensors before and after pooling.
struct Windows {
  std::vector<PoolAxis> axes;
  int64_t channels = 0, images = 0, in_pixels = 1, pixels = 1, places = 1;

  Windows(const Sizes& in, const Sizes& out, const Attrs& attrs) : channels(in[1]), images(in[0]) {
    const std::vector<int64_t> kernel = attrs.integers("kernel_shape");
    for (size_t d = 0; d < kernel.size(); ++d) {
      axes.push_back({in[d + 2], out[d + 2], kernel[d], attrs.integers("strides")[d],
                      attrs.integers("pads")[d], attrs.integers("dilations")[d]});
      in_pixels *= in[d + 2];
      pixels *= out[d + 2];
      places *= kernel[d];
    }
  }
  /// body(place, pixel of x) for the places of output pixel `at` that lie inside, in order.
  template <class Body>
  void each_place(int64_t at, const Body& body) const {
    std::array<WindowPart<int64_t>, kMostSpatial> parts;
    for (size_t d = axes.size(); d-- > 0; at /= axes[d].out) {
      parts[d] = axes[d].window(at % axes[d].out);
      if (parts[d].first >= parts[d].last) return;
    }
    each_place_along(0, parts, 0, 0, body);
  }

 private:
  template <class Body>
  void each_place_along(size_t d, const std::array<WindowPart<int64_t>, kMostSpatial>& parts,
                        int64_t place, int64_t pixel, const Body& body) const {
    if (d >= std::min(axes.size(), parts.size())) return body(place, pixel);
    for (int64_t k = parts[d].first; k < parts[d].last; ++k)
      each_place_along(d + 1, parts, place * axes[d].kernel + k,
                       pixel * axes[d].in + parts[d].start + k * axes[d].dilation, body);
  }
};

std::shared_ptr<const void> prepare_forward(const StepFacts& facts) {
  return std::make_shared<const Windows>(facts.inputs[0].layout.sizes,
                                         facts.outputs[0].layout.sizes, facts.node().attrs);
}
std::shared_ptr<const void> prepare_backward(const StepFacts& facts) {
  return std::make_shared<const Windows>(facts.outputs[0].layout.sizes,
                                         facts.inputs[0].layout.sizes, facts.node().attrs);
}

/// Channels that are worked on together.
constexpr int64_t kChannels = 64;

template <class T>
struct Largest {
  ComputeOf<T> values[kChannels];
  int32_t places[kChannels];

  void clear(int64_t count) {
    std::fill_n(values, count, -std::numeric_limits<ComputeOf<T>>::infinity());
    std::fill_n(places, count, int32_t{kNoPlace});
  }
  void take(const T* from, int32_t place, int64_t count) {
    ORTM_SIMD
    for (int64_t c = 0; c < count; ++c) {
      const ComputeOf<T> value = computed(from[c]);
      const bool larger = (value > values[c]) | (value != value) | (places[c] == kNoPlace);
      values[c] = larger ? value : values[c];
      places[c] = larger ? place : places[c];
    }
  }
};

/// Of each place of a window the pixel of x that output pixel `at` sees there.
void find_pixels(const Windows& w, int64_t at, std::vector<int64_t>& pixels) {
  w.each_place(at,
               [&](int64_t place, int64_t pixel) { pixels[static_cast<size_t>(place)] = pixel; });
}

template <class T>
void pool_pixel(const KernelArgs& args, const Windows& w, int64_t image, int64_t at,
                std::vector<int64_t>& pixels) {
  const T* x = args.in[0].as<T>() + image * w.in_pixels * w.channels;
  const int64_t to = (image * w.pixels + at) * w.channels;
  T* y = args.out[0].as<T>();  // null, like the others, if nobody reads it
  auto* indices = args.out.size() > 1 ? args.out[1].as<int64_t>() : nullptr;
  auto* places = args.out.size() > 2 ? args.out[2].as<uint8_t>() : nullptr;
  if (indices) find_pixels(w, at, pixels);
  for (int64_t begin = 0; begin < w.channels; begin += kChannels) {
    const int64_t count = std::min(kChannels, w.channels - begin);
    Largest<T> largest;
    largest.clear(count);
    w.each_place(at, [&](int64_t place, int64_t pixel) {
      largest.take(x + pixel * w.channels + begin, static_cast<int32_t>(place), count);
    });
    for (int64_t c = 0; c < count; ++c) {
      const int32_t place = largest.places[c];
      if (y) y[to + begin + c] = stored<T>(largest.values[c]);
      if (places) places[to + begin + c] = static_cast<uint8_t>(place);
      if (indices)
        indices[to + begin + c] = place == kNoPlace ? 0 : pixels[static_cast<size_t>(place)];
    }
  }
}

void max_pool(const KernelArgs& args) {
  const Windows& w = *static_cast<const Windows*>(args.prepared);
  dispatch_float(args.in[0].dtype, [&]<class T> {
    parallel_ranges(args.context, w.images * w.pixels, grain_for(w.channels * w.places),
                    [&](int64_t begin, int64_t end) {
                      std::vector<int64_t> pixels(static_cast<size_t>(w.places));
                      for (int64_t i = begin; i < end; ++i)
                        pool_pixel<T>(args, w, i / w.pixels, i % w.pixels, pixels);
                    });
  });
}

/// Channels [begin, begin + count) of an image of dx.
template <class T>
void scatter_channels(const KernelArgs& args, const Windows& w, int64_t image, int64_t begin,
                      int64_t count) {
  const T* dy = args.in[0].as<T>() + image * w.pixels * w.channels + begin;
  const auto* places = args.in[1].as<uint8_t>() + image * w.pixels * w.channels + begin;
  T* dx = args.out[0].as<T>() + image * w.in_pixels * w.channels + begin;
  for (int64_t i = 0; i < w.in_pixels; ++i) std::fill_n(dx + i * w.channels, count, T{});
  std::vector<int64_t> pixels(static_cast<size_t>(w.places));
  for (int64_t i = 0; i < w.pixels; ++i) {
    find_pixels(w, i, pixels);
    for (int64_t c = 0; c < count; ++c) {
      const uint8_t place = places[i * w.channels + c];
      if (place == kNoPlace) continue;
      T& sum = dx[pixels[place] * w.channels + c];
      sum = stored<T>(computed(sum) + computed(dy[i * w.channels + c]));
    }
  }
}

void max_pool_grad(const KernelArgs& args) {
  const Windows& w = *static_cast<const Windows*>(args.prepared);
  const int64_t parts = (w.channels + kChannels - 1) / kChannels;
  dispatch_float(args.in[0].dtype, [&]<class T> {
    parallel_ranges(args.context, w.images * parts, grain_for(2 * w.in_pixels * kChannels),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                        const int64_t first = i % parts * kChannels;
                        scatter_channels<T>(args, w, i / parts, first,
                                            std::min(kChannels, w.channels - first));
                      }
                    });
  });
}

/// All operands lie channels-last, and the windows are not those of images.
Reason unsupported(const StepFacts& facts) {
  const std::vector<int64_t> kernel = facts.node().attrs.integers("kernel_shape");
  if (kernel.size() == 2) return "the windows have two dimensions";
  int64_t places = 1;
  for (const int64_t size : kernel) places *= size;
  if (places > kNoPlace) return "the window has more than 255 places";
  for (const OperandFacts& operand : facts.inputs)
    if (operand.layout.strides.size() != operand.layout.sizes.size() ||
        !is_pixel_major(operand.layout))
      return "an operand is not channels-last";
  return pool_dimensions_unsupported(facts);
}

REGISTER_CPU_KERNEL({.op = "MaxPool",
                     .name = "max_pool_pixels_cpu",
                     .dtypes = kAllFloats,
                     .run = max_pool,
                     .unsupported = unsupported,
                     .output_strides = pooled_strides,
                     .prepare = prepare_forward,
                     .layout = LayoutRule::MemoryFormat,
                     .leaves_out_unused = true,
                     .priority = -1});
REGISTER_CPU_KERNEL({.op = "MaxPoolGrad",
                     .name = "max_pool_pixels_grad_cpu",
                     .dtypes = kAllFloats,
                     .run = max_pool_grad,
                     .unsupported = unsupported,
                     .output_strides = pooled_strides,
                     .prepare = prepare_backward,
                     .layout = LayoutRule::MemoryFormat,
                     .priority = -1});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
