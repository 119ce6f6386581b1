// MaxPool and MaxPoolGrad of images and volumes as in cpu/pool.cpp and cpu/pool_plain.cpp. Method:
// a thread per output element; in the gradient a thread per element of dx, which looks into the
// windows around it, so that nothing is added by atomics. Common windows of images have kernels of
// their own (pool_halving.cuh). Bytes moved: x as often as windows overlap, mostly from cache; the
// rest once.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <optional>

#include "kernels/cuda/fast_divisor.h"
#include "kernels/cuda/half_conversion.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pool_halving.cuh"
#include "kernels/dtype_dispatch.h"
#include "kernels/pool.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;
/// Blocks that a multiprocessor shall hold. Left to choose, the compiler takes more registers for
/// 64-bit positions than two blocks have, and spills elsewhere to make room for a fifth.
template <class T, class N>
constexpr int kBlocks = sizeof(N) == 8   ? 2
                        : sizeof(T) == 8 ? 3
                                         : 4;

/// The axes of images or volumes from outside in, as the host sees them.
template <size_t axes>
using PoolAxes = std::array<PoolAxis, axes>;

/// The geometry with positions of type N: int32_t with FastDivisor, or int64_t for both.
template <class N, class D, size_t axes>
struct Windows {
  using Position = N;
  static constexpr int kAxes = static_cast<int>(axes);
  PoolAxisOf<N, D> axis[axes];
  D channels{1};
  D sizes[axes];  // of the tensor that threads are counted by
  bool pixel_major = false;

  Windows(const PoolAxes<axes>& of, int64_t channel_count, bool by_result,
          bool channels_are_innermost)
      : channels(divisor(channel_count)), pixel_major(channels_are_innermost) {
    for (size_t d = 0; d < axes; ++d) {
      axis[d] = axis_of(of[d]);
      sizes[d] = divisor(by_result ? of[d].out : of[d].in);
    }
  }

 private:
  static D divisor(int64_t d) {
    if constexpr (std::is_same_v<D, FastDivisor>)
      return FastDivisor(static_cast<uint32_t>(d));
    else
      return d;
  }
  static PoolAxisOf<N, D> axis_of(const PoolAxis& a) {
    const auto number = [](int64_t x) { return static_cast<N>(x); };
    return {number(a.in),      number(a.out), number(a.kernel),
            divisor(a.stride), number(a.pad), divisor(a.dilation)};
  }
};

/// From the first element to the last.
int64_t reach(const TensorView& t) {
  int64_t last = 0;
  for (int d = 0; d < t.rank; ++d) last += (t.sizes[d] - 1) * t.strides[d];
  return last;
}

/// Whether 32 bits hold all positions, also those of windows that reach beyond the image, and all
/// offsets.
template <size_t axes>
bool fits_32_bits(const PoolAxes<axes>& of, std::initializer_list<const TensorView*> tensors) {
  for (const TensorView* t : tensors)
    if (std::max(t->element_count(), reach(*t)) > kLaunchElements) return false;
  const auto fits = [](const PoolAxis& a) {
    return std::max({a.in, a.out, a.stride, a.dilation, a.pad}) <= kLaunchElements / 8 &&
           a.kernel <= kLaunchElements / 8 / std::max<int64_t>(a.dilation, 1) &&
           a.out <= kLaunchElements / std::max<int64_t>(a.stride, 1);
  };
  return std::all_of(of.begin(), of.end(), fits);
}

template <class W>
struct Strides {
  using N = typename W::Position;
  N image, channel, along[W::kAxes];

  explicit Strides(const TensorView& t)
      : image(static_cast<N>(t.strides[0])), channel(static_cast<N>(t.strides[1])) {
    for (int d = 0; d < W::kAxes; ++d) along[d] = static_cast<N>(t.strides[d + 2]);
  }
  __device__ __forceinline__ N start(N n, N c) const { return n * image + c * channel; }
  /// Of a row and a column.
  __device__ __forceinline__ N at(N i, N j) const {
    return i * along[W::kAxes - 2] + j * along[W::kAxes - 1];
  }
  __device__ __forceinline__ N at(const N (&position)[W::kAxes]) const {
    N offset = at(position[W::kAxes - 2], position[W::kAxes - 1]);
    if constexpr (W::kAxes == 3) offset += position[0] * along[0];
    return offset;
  }
};

// Neighbouring threads take neighbouring elements: channels where those are innermost.
template <class W>
struct Element {
  using N = typename W::Position;
  N image, channel, position[W::kAxes];

  __device__ __forceinline__ Element(int64_t thread, const W& w) {
    N at = static_cast<N>(thread);
    if (w.pixel_major) channel = split(at, w.channels);
#pragma unroll
    for (int d = W::kAxes - 1; d >= 0; --d) position[d] = split(at, w.sizes[d]);
    if (!w.pixel_major) channel = split(at, w.channels);
    image = at;
  }

 private:
  template <class D>
  __device__ static __forceinline__ N split(N& at, const D& d) {
    const N whole = quotient(at, d), rest = at - whole * value_of(d);
    at = whole;
    return rest;
  }
};

// Null, like y, if nobody reads them: backward may pool again for the places.
template <class W>
struct Results {
  int64_t* indices;
  uint8_t* places;
  Strides<W> strides;  // of all results
};

/// The largest element of a window so far: the first one of equals, the last one of NaNs.
template <class C>
struct LargestSoFar {
  C value = -std::numeric_limits<C>::infinity();
  int64_t index = 0;  // torch's: counted through the image or volume
  uint8_t place = kNoPlace;

  __device__ __forceinline__ void take(C x, int64_t at, uint8_t at_place) {
    if (!(x > value || x != x || place == kNoPlace)) return;
    value = x;
    index = at;
    place = at_place;
  }
};

template <class T, class W>
__global__ __launch_bounds__(kThreads, (kBlocks<T, typename W::Position>)) void max_pool_cuda(
    ORTM_GRID_CONSTANT(W) w, ORTM_GRID_CONSTANT(Strides<W>) x_strides,
    ORTM_GRID_CONSTANT(Results<W>) results, const T* x, T* y, int64_t count) {
  using C = ComputeOf<T>;
  using N = typename W::Position;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread >= count) return;
  constexpr int kRows = W::kAxes - 2, kColumns = W::kAxes - 1;
  const Element<W> e(thread, w);
  const auto &rows = w.axis[kRows], &columns = w.axis[kColumns];
  const WindowPart<N> down = rows.window(e.position[kRows]),
                      across = columns.window(e.position[kColumns]);
  LargestSoFar<C> largest;
  const auto look_into = [&](const T* plane, N first_place, int64_t first_index) {
    for (N k = down.first; k < down.last; ++k) {
      const N row = down.start + k * value_of(rows.dilation);
      for (N j = across.first; j < across.last; ++j) {
        const N column = across.start + j * value_of(columns.dilation);
        largest.take(widened(plane[x_strides.at(row, column)]),
                     first_index + int64_t{row} * columns.in + column,
                     static_cast<uint8_t>(first_place + k * columns.kernel + j));
      }
    }
  };
  const T* start = x + x_strides.start(e.image, e.channel);
  if constexpr (W::kAxes == 3) {
    const auto& depth = w.axis[0];
    const WindowPart<N> through = depth.window(e.position[0]);
    for (N k = through.first; k < through.last; ++k) {
      const N at = through.start + k * value_of(depth.dilation);
      look_into(start + at * x_strides.along[0], k * rows.kernel * columns.kernel,
                int64_t{at} * rows.in * columns.in);
    }
  } else {
    look_into(start, 0, 0);
  }
  const N to = results.strides.start(e.image, e.channel) + results.strides.at(e.position);
  if (y) y[to] = narrowed(largest.value, T{});
  if (results.places) results.places[to] = largest.place;
  if (results.indices) results.indices[to] = largest.index;
}

bool is_pixel_major(const TensorView& t) { return t.strides[1] == 1 && t.sizes[1] > 1; }

/// body(windows): with 32-bit positions where they fit. `counted` has an element per thread.
template <size_t axes, class Body>
void with_windows(const PoolAxes<axes>& of, bool by_result, const TensorView& counted,
                  std::initializer_list<const TensorView*> tensors, const Body& body) {
  const int64_t channels = counted.sizes[1];
  if (fits_32_bits(of, tensors))
    body(Windows<int32_t, FastDivisor, axes>(of, channels, by_result, is_pixel_major(counted)));
  else
    body(Windows<int64_t, int64_t, axes>(of, channels, by_result, is_pixel_major(counted)));
}

template <class T, size_t axes>
void launch_max_pool(const KernelArgs& args, const PoolAxes<axes>& of) {
  const TensorView &x = args.in[0], &y = args.out[0];
  const int64_t count = y.element_count();
  with_windows(of, true, y, {&x, &y}, [&]<class W>(const W& windows) {
    const Results<W> results{args.out[1].as<int64_t>(), args.out[2].as<uint8_t>(), Strides<W>(y)};
    ORTM_LAUNCH((max_pool_cuda<T, W>), grid_of(blocks_for(count, kThreads)), kThreads, 0,
                args.context, windows, Strides<W>(x), results, x.as<T>(), y.as<T>(), count);
  });
}

/// What a plan keeps for a step.
struct Pooling {
  std::optional<PoolShape> image;  // where the windows have two dimensions
  PoolAxes<3> volume;              // else

  /// `in` and `out`: the tensors before and after pooling.
  Pooling(const OperandFacts& in, const OperandFacts& out, const Attrs& attrs) {
    const Sizes &before = in.layout.sizes, &after = out.layout.sizes;
    const std::vector<int64_t> kernel = attrs.integers("kernel_shape");
    if (kernel.size() == 2) image.emplace(before, after, attrs);
    for (size_t d = 0; d < volume.size() && !image; ++d)
      volume[d] = {before[d + 2],
                   after[d + 2],
                   kernel[d],
                   attrs.integers("strides")[d],
                   attrs.integers("pads")[d],
                   attrs.integers("dilations")[d]};
  }
};

PoolAxes<2> axes_of(const PoolShape& s) { return {s.rows, s.columns}; }

void run_max_pool(const KernelArgs& args) {
  const Pooling& p = *static_cast<const Pooling*>(args.prepared);
  if (args.out[0].element_count() == 0) return;
  dispatch_float(args.in[0].dtype, [&]<class T> {
    if (!p.image) return launch_max_pool<T>(args, p.volume);
    if (!halving_pool<T>(args, *p.image)) launch_max_pool<T>(args, axes_of(*p.image));
  });
}

// --- gradient ------------------------------------------------------------------------------------
template <class W>
struct Sources {
  Strides<W> dy, places, dx;
};

template <class T, class W>
__global__ __launch_bounds__(kThreads, (kBlocks<T, typename W::Position>)) void max_pool_grad_cuda(
    ORTM_GRID_CONSTANT(W) w, ORTM_GRID_CONSTANT(Sources<W>) from, const T* dy,
    const uint8_t* places, T* dx, int64_t count) {
  using N = typename W::Position;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread >= count) return;
  constexpr int kRows = W::kAxes - 2, kColumns = W::kAxes - 1;
  const Element<W> e(thread, w);
  const auto &rows = w.axis[kRows], &columns = w.axis[kColumns];
  const N row = e.position[kRows], column = e.position[kColumns];
  ComputeOf<T> sum = 0;
  const N last_row = rows.last_window(row), last_column = columns.last_window(column);
  const auto add_windows = [&](const uint8_t* place_plane, const T* dy_plane, N first_place) {
    for (N i = rows.first_window(row); i < last_row; ++i) {
      const N down = rows.place(i, row);
      if (down < 0) continue;
      for (N j = columns.first_window(column); j < last_column; ++j) {
        const N across = columns.place(j, column);
        if (across < 0) continue;
        if (place_plane[from.places.at(i, j)] == first_place + down * columns.kernel + across)
          sum += widened(dy_plane[from.dy.at(i, j)]);
      }
    }
  };
  const uint8_t* place_start = places + from.places.start(e.image, e.channel);
  const T* dy_start = dy + from.dy.start(e.image, e.channel);
  if constexpr (W::kAxes == 3) {
    const auto& depth = w.axis[0];
    const N last = depth.last_window(e.position[0]);
    for (N i = depth.first_window(e.position[0]); i < last; ++i) {
      const N through = depth.place(i, e.position[0]);
      if (through < 0) continue;
      add_windows(place_start + i * from.places.along[0], dy_start + i * from.dy.along[0],
                  through * rows.kernel * columns.kernel);
    }
  } else {
    add_windows(place_start, dy_start, 0);
  }
  dx[from.dx.start(e.image, e.channel) + from.dx.at(e.position)] = narrowed(sum, T{});
}

template <class T, size_t axes>
void launch_max_pool_grad(const KernelArgs& args, const PoolAxes<axes>& of) {
  const TensorView &dy = args.in[0], &places = args.in[1], &dx = args.out[0];
  const int64_t count = dx.element_count();
  with_windows(of, false, dx, {&dy, &places, &dx}, [&]<class W>(const W& windows) {
    const Sources<W> from{Strides<W>(dy), Strides<W>(places), Strides<W>(dx)};
    ORTM_LAUNCH((max_pool_grad_cuda<T, W>), grid_of(blocks_for(count, kThreads)), kThreads, 0,
                args.context, windows, from, dy.as<T>(), places.as<uint8_t>(), dx.as<T>(), count);
  });
}

void run_max_pool_grad(const KernelArgs& args) {
  const Pooling& p = *static_cast<const Pooling*>(args.prepared);
  if (args.out[0].element_count() == 0) return;
  dispatch_float(args.in[0].dtype, [&]<class T> {
    if (!p.image) return launch_max_pool_grad<T>(args, p.volume);
    if (!halving_pool_grad<T>(args, *p.image)) launch_max_pool_grad<T>(args, axes_of(*p.image));
  });
}

// --- registration --------------------------------------------------------------------------------
std::shared_ptr<const void> prepare_pooling(const StepFacts& facts) {
  return std::make_shared<const Pooling>(facts.inputs[0], facts.outputs[0], facts.node().attrs);
}
std::shared_ptr<const void> prepare_pooling_grad(const StepFacts& facts) {
  return std::make_shared<const Pooling>(facts.outputs[0], facts.inputs[0], facts.node().attrs);
}

Reason unsupported(const StepFacts& facts) {
  const std::vector<int64_t> kernel = facts.node().attrs.integers("kernel_shape");
  if (kernel.size() != 3) return image_pool_unsupported(facts);
  if (kernel[0] * kernel[1] * kernel[2] > kNoPlace) return "the window has more than 255 places";
  return {};
}

REGISTER_KERNEL({.op = "MaxPool",
                 .name = "max_pool_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_max_pool,
                 .unsupported = unsupported,
                 .output_strides = pooled_strides,
                 .prepare = prepare_pooling,
                 .layout = LayoutRule::MemoryFormat,
                 .leaves_out_unused = true});
REGISTER_KERNEL({.op = "MaxPoolGrad",
                 .name = "max_pool_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_max_pool_grad,
                 .unsupported = unsupported,
                 .output_strides = pooled_strides,
                 .prepare = prepare_pooling_grad,
                 .layout = LayoutRule::MemoryFormat});

}  // namespace
}  // namespace ortmodule::cuda
