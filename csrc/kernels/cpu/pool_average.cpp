// AveragePool of x [N, C, ...] of any number of dimensions: y = the sum of each window over the
// number of its places, those in the padding included if count_include_pad says so; places beyond
// the padding, where ceil_mode lets a window reach, never count.
// Method: place by place, lines of outputs add shifted lines of x; channels-last, the pixels of a
// window, in the same order; row-major float32 first adds the lines of a window (pool_lines.h).
// Bytes moved: x as often as the caches lose it, y once.
#include "kernels/cpu/pixel_windows.h"
#include "kernels/cpu/pool_lines.h"
#include "kernels/cpu/pool_windows.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

struct MeanFold {
  FloatVec count;

  static FloatVec start() { return FloatVec(0.0f); }
  static FloatVec add(FloatVec sum, FloatVec value) { return sum + value; }
  FloatVec finish(FloatVec sum) const { return sum / count; }
};

struct Average {
  PatchShape windows;
  LinePlan lines;
  std::vector<std::vector<int64_t>> counts;  // places that count, of each output along a dimension
  std::vector<float> last_counts;            // the same along the last dimension, ...
  std::vector<float> outer_counts;           // ... and of all others together, line by line

  /// The product of these along all dimensions but the last.
  int64_t outer(const PatchSegment& segment) const {
    int64_t count = 1;
    for (size_t d = 0; d + 1 < counts.size(); ++d)
      count *= counts[d][static_cast<size_t>(segment.outer[d])];
    return count;
  }
};

LinePlan line_plan(const PatchShape& windows) {
  return {windows, pool_line_for<MeanFold>(pool_axis(windows.last()))};
}

size_t workspace_bytes(const StepFacts& facts) {
  const OperandFacts& x = facts.inputs[0];
  if (x.dtype != DType::Float32 || is_pixel_major(x.layout)) return 0;
  return line_plan(pool_windows(facts)).workspace_bytes(facts);
}

std::shared_ptr<const void> prepare_average(const StepFacts& facts) {
  const Attrs& attrs = facts.node().attrs;
  const bool with_padding = attrs.integer("count_include_pad", 1) != 0;
  const std::vector<int64_t> pads = attrs.integers("pads");
  auto average = std::make_shared<Average>();
  average->windows = pool_windows(facts);
  const std::vector<PatchAxis>& axes = average->windows.axes;
  for (size_t d = 0; d < axes.size(); ++d) {
    const int64_t least = with_padding ? -pads[d] : 0;
    const int64_t end = axes[d].in + (with_padding ? pads[axes.size() + d] : 0);
    std::vector<int64_t>& counts = average->counts.emplace_back();
    for (int64_t o = 0; o < axes[d].out; ++o)
      counts.push_back(
          std::count_if(axes[d].offsets.begin(), axes[d].offsets.end(), [&](int64_t offset) {
            const int64_t at = o * axes[d].stride + offset;
            return at >= least && at < end;
          }));
  }
  average->last_counts.assign(average->counts.back().begin(), average->counts.back().end());
  average->windows.for_each_segment(0, average->windows.pixels, [&](const PatchSegment& segment) {
    average->outer_counts.push_back(static_cast<float>(average->outer(segment)));
  });
  average->lines = line_plan(average->windows);
  return average;
}

/// Output pixels [begin, begin + count) of a plane.
template <class T>
void average_chunk(const Average& average, const T* image, int64_t begin, int64_t count, T* y) {
  using C = ComputeOf<T>;
  const PatchShape& s = average.windows;
  C sums[kRowChunk];
  std::fill_n(sums, count, C(0));
  const int64_t stride = s.last().stride;
  for_each_place(s, image, begin, count, [&](int64_t, const T* from, int64_t at, int64_t n) {
    C* to = sums + at;
    ORTM_SIMD
    for (int64_t i = 0; i < n; ++i) to[i] += computed(from[i * stride]);
  });
  s.for_each_segment(begin, count, [&](const PatchSegment& segment) {
    const int64_t outer = average.outer(segment);
    const int64_t* along = average.counts.back().data() + segment.first;
    for (int64_t i = 0; i < segment.count; ++i) {
      const int64_t places = std::max<int64_t>(outer * along[i], 1);  // 0 of an empty window
      y[segment.begin + i] = stored<T>(sums[segment.begin + i] / static_cast<C>(places));
    }
  });
}

/// The channels of a pixel.
template <class T>
void average_pixel(const T* x, Places places, int64_t count, int64_t channels, T* y) {
  using C = ComputeOf<T>;
  if constexpr (std::is_same_v<T, float>)
    return fold_pixel(x, places, MeanFold{FloatVec(count)}, channels, y);
  for_each_chunk(channels, [&](int64_t begin, int64_t n) {
    C sums[kRowChunk];
    std::fill_n(sums, n, C(0));
    for (int64_t place : places) {
      const T* from = x + place + begin;
      ORTM_SIMD
      for (int64_t c = 0; c < n; ++c) sums[c] += computed(from[c]);
    }
    ORTM_SIMD
    for (int64_t c = 0; c < n; ++c) y[begin + c] = stored<T>(sums[c] / static_cast<C>(count));
  });
}

template <class T>
void average_pixels(const KernelArgs& args, const Average& average) {
  const PatchShape& s = average.windows;
  const int64_t n = args.facts.inputs[0].layout.sizes[1];
  for_each_image_part(args, s, [&](int64_t image, int64_t begin, int64_t end) {
    const T* x = args.in[0].as<T>() + image * s.in_pixels * n;
    T* y = args.out[0].as<T>() + (image * s.pixels + begin) * n;
    for_each_window(
        s, n, begin, end, [&](int64_t from, Places places, const PatchSegment& segment, int64_t i) {
          const int64_t along = average.counts.back()[static_cast<size_t>(segment.first + i)];
          const int64_t count = average.outer(segment) * along;
          average_pixel(x + from, places, std::max<int64_t>(count, 1), n, y);
          y += n;
        });
  });
}

/// Row-major float32.
void average_lines(const KernelArgs& args, const Average& average) {
  pool_lines<MeanFold>(args, average.windows, average.lines,
                       [&](int64_t line, int64_t first, int64_t count, float* y) {
                         const float outer = average.outer_counts[static_cast<size_t>(line)];
                         const float* along = average.last_counts.data() + first;
                         ORTM_SIMD
                         for (int64_t o = 0; o < count; ++o)
                           y[o] /= std::max(outer * along[o], 1.0f);  // 0 of an empty window
                       });
}

void average_pool(const KernelArgs& args) {
  const auto& average = *static_cast<const Average*>(args.prepared);
  const PatchShape& s = average.windows;
  const bool pixels = is_pixel_major(args.facts.inputs[0].layout);
  dispatch_float(args.in[0].dtype, [&]<class T> {
    if (pixels) return average_pixels<T>(args, average);
    if constexpr (std::is_same_v<T, float>)
      if (average.lines.is_usable()) return average_lines(args, average);
    for_each_plane_chunk(args, s, [&](int64_t plane, int64_t begin, int64_t count) {
      average_chunk(average, args.in[0].as<T>() + plane * s.in_pixels, begin, count,
                    args.out[0].as<T>() + plane * s.pixels + begin);
    });
  });
}

REGISTER_CPU_KERNEL({.op = "AveragePool",
                     .name = "average_pool_cpu",
                     .dtypes = kAllFloats,
                     .run = average_pool,
                     .unsupported = pool_dimensions_unsupported,
                     .workspace_bytes = workspace_bytes,
                     .output_strides = pooled_strides,
                     .prepare = prepare_average,
                     .layout = LayoutRule::MemoryFormat,
                     .priority = -1});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
