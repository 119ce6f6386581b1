// MaxPool of any number of dimensions, any window and any real type; pool.cpp has the fast one of
// images of floats, pool_bytes.cpp that of channels-last bytes. y = the largest element of each
// window, NaN if there is one, and on request its index in the plane and its place in the window.
// Of equal elements the first is taken. Values alone, of float32, are found by lines
// (pool_lines.h).
#include "kernels/cpu/pool_lines.h"
#include "kernels/cpu/pool_windows.h"
#include "kernels/pool.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

struct Windows {
  PatchShape shape;
  LinePlan lines;

  explicit Windows(const StepFacts& facts)
      : shape(pool_windows(facts)),
        lines(shape, pool_line_for<LargestFold>(pool_axis(shape.last()))) {}
};

std::shared_ptr<const void> prepare_windows(const StepFacts& facts) {
  return std::make_shared<const Windows>(facts);
}

size_t workspace_bytes(const StepFacts& facts) {
  return facts.inputs[0].dtype == DType::Float32 ? Windows(facts).lines.workspace_bytes(facts) : 0;
}

Reason unsupported(const StepFacts& facts) {
  const std::vector<bool>& used = facts.node().output_used;
  const bool wants_places =
      used.size() > 2 ? used[2]
                      : facts.outputs.size() > 2 && facts.outputs[2].dtype != DType::Undefined;
  if (wants_places && pool_windows(facts).places > kNoPlace)
    return "the place in so large a window does not fit a byte";
  return pool_dimensions_unsupported(facts);
}

template <class C>
constexpr C least_of() {
  if constexpr (std::numeric_limits<C>::has_infinity) {
    return -std::numeric_limits<C>::infinity();
  } else {
    return std::numeric_limits<C>::lowest();
  }
}

/// The largest elements of output pixels [begin, begin + count) of a plane, and their places; -1
/// where a window lies beside the image.
template <class T>
void find_largest(const PatchShape& s, const T* image, int64_t begin, int64_t count,
                  ComputeOf<T>* values, int32_t* places) {
  using C = ComputeOf<T>;
  std::fill_n(values, count, least_of<C>());
  std::fill_n(places, count, int32_t{-1});
  const int64_t stride = s.last().stride;
  for_each_place(s, image, begin, count, [&](int64_t place, const T* from, int64_t at, int64_t n) {
    const auto where = static_cast<int32_t>(place);
    for (int64_t i = 0; i < n; ++i) {
      const C value = computed(from[i * stride]);
      C& best = values[at + i];
      int32_t& best_place = places[at + i];
      const bool larger = (value > best) | (value != value) | (best_place < 0);
      best = larger ? value : best;
      best_place = larger ? where : best_place;
    }
  });
}

/// The index in the plane of each window's largest element; 0 without one.
void write_indices(const PatchShape& s, int64_t begin, int64_t count, const int32_t* places,
                   int64_t* to) {
  const size_t last = s.axes.size() - 1;
  s.for_each_segment(begin, count, [&](const PatchSegment& segment) {
    for (int64_t i = segment.begin; i < segment.begin + segment.count; ++i) {
      int64_t index = 0;
      if (places[i] >= 0) {
        const auto offsets = s.offsets_of(places[i]);
        for (size_t d = 0; d <= last; ++d) {
          const int64_t o = d < last ? segment.outer[d] : segment.first + (i - segment.begin);
          index = index * s.axes[d].in + o * s.axes[d].stride + offsets[d];
        }
      }
      to[i] = index;
    }
  });
}

template <class T>
void pool(const KernelArgs& args, const PatchShape& s) {
  T* y = args.out[0].as<T>();  // null, like the others, if nobody reads it
  auto* indices = args.out.size() > 1 ? args.out[1].as<int64_t>() : nullptr;
  auto* in_window = args.out.size() > 2 ? args.out[2].as<uint8_t>() : nullptr;
  for_each_plane_chunk(args, s, [&](int64_t plane, int64_t begin, int64_t count) {
    ComputeOf<T> values[kRowChunk];
    int32_t places[kRowChunk];
    find_largest(s, args.in[0].as<T>() + plane * s.in_pixels, begin, count, values, places);
    const int64_t to = plane * s.pixels + begin;
    for (int64_t i = 0; y && i < count; ++i) y[to + i] = stored<T>(values[i]);
    if (indices) write_indices(s, begin, count, places, indices + to);
    for (int64_t i = 0; in_window && i < count; ++i)
      in_window[to + i] = places[i] < 0 ? kNoPlace : static_cast<uint8_t>(places[i]);
  });
}

void max_pool(const KernelArgs& args) {
  const auto& [shape, lines] = *static_cast<const Windows*>(args.prepared);
  const auto is_read = [&](size_t i) { return i < args.out.size() && args.out[i].data; };
  if (args.in[0].dtype == DType::Float32 && lines.is_usable() && !is_read(1) && !is_read(2))
    return pool_lines<LargestFold>(args, shape, lines, [](int64_t, int64_t, int64_t, float*) {});
  dispatch_real(args.in[0].dtype, [&]<class T> { pool<T>(args, shape); });
}

REGISTER_CPU_KERNEL({.op = "MaxPool",
                     .name = "max_pool_plain_cpu",
                     .dtypes = kAllFloats | kIntegers,
                     .run = max_pool,
                     .unsupported = unsupported,
                     .workspace_bytes = workspace_bytes,
                     .prepare = prepare_windows,
                     .leaves_out_unused = true,
                     .priority = -2});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
