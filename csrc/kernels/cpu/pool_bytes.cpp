// MaxPool of channels-last images of bytes, as quantized networks have them: values alone. The
// channels of a pixel are folded over the pixels of its window, vector by vector.
// Bytes moved: x as often as the caches lose it, y once.
#include <cstring>
#include <limits>

#include "kernels/cpu/pixel_windows.h"
#include "kernels/cpu/pool_windows.h"
#include "kernels/pool.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

std::shared_ptr<const void> prepare_windows(const StepFacts& facts) {
  return std::make_shared<const PatchShape>(pool_windows(facts));
}

template <class T>
void pool_pixel(const T* x, Places places, int64_t channels, T* y) {
  if (places.empty()) return void(std::fill_n(y, channels, std::numeric_limits<T>::lowest()));
  std::memcpy(y, x + places[0], static_cast<size_t>(channels));
  for (const int64_t place : places.subspan(1)) {
    const T* from = x + place;
    ORTM_SIMD
    for (int64_t c = 0; c < channels; ++c) y[c] = std::max(y[c], from[c]);
  }
}

template <class T>
void pool_pixels(const KernelArgs& args) {
  const auto& windows = *static_cast<const PatchShape*>(args.prepared);
  const int64_t n = args.facts.inputs[0].layout.sizes[1];
  for_each_image_part(args, windows, [&](int64_t image, int64_t begin, int64_t end) {
    const T* x = args.in[0].as<T>() + image * windows.in_pixels * n;
    T* y = args.out[0].as<T>() + (image * windows.pixels + begin) * n;
    for_each_window(windows, n, begin, end,
                    [&](int64_t from, Places places, const PatchSegment&, int64_t) {
                      pool_pixel(x + from, places, n, y);
                      y += n;
                    });
  });
}

void max_pool(const KernelArgs& args) {
  args.in[0].dtype == DType::Int8 ? pool_pixels<int8_t>(args) : pool_pixels<uint8_t>(args);
}

Reason unsupported(const StepFacts& facts) {
  const Layout& x = facts.inputs[0].layout;
  if (x.strides.size() != x.sizes.size() || !is_pixel_major(x))
    return "the image is not channels-last";
  const std::vector<bool>& used = facts.node().output_used;
  for (size_t i = 1; i < facts.outputs.size(); ++i)
    if (i < used.size() ? used[i] : facts.outputs[i].dtype != DType::Undefined)
      return "indices or places are wanted";
  return pool_dimensions_unsupported(facts);
}

REGISTER_CPU_KERNEL({.op = "MaxPool",
                     .name = "max_pool_bytes_cpu",
                     .dtypes = {DType::Int8, DType::UInt8},
                     .run = max_pool,
                     .unsupported = unsupported,
                     .output_strides = pooled_strides,
                     .prepare = prepare_windows,
                     .layout = LayoutRule::MemoryFormat,
                     .leaves_out_unused = true,
                     .priority = -1});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
