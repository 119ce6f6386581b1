// MaxPool and MaxPoolGrad as in cpu/pool.cpp. Method: a thread per output element; in the
// gradient a thread per element of dx, which looks into the windows around it, so that nothing is
// added by atomics. Common windows have kernels of their own (pool_halving.cuh). Bytes moved: x as
// often as windows overlap, mostly from cache; the rest once.
#include <algorithm>
#include <initializer_list>
#include <limits>

#include "kernels/cuda/fast_divisor.h"
#include "kernels/cuda/half_conversion.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pool_halving.cuh"
#include "kernels/dtype_dispatch.h"
#include "kernels/pool.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;

/// The geometry with positions of type N: int32_t with FastDivisor, or int64_t for both.
template <class N, class D>
struct Windows {
  using Position = N;
  PoolAxisOf<N, D> rows, columns;
  D channels{1};
  D height{1}, width{1};  // of the tensor that threads are counted by
  bool pixel_major = false;

  Windows(const PoolShape& s, bool by_result, bool channels_are_innermost)
      : rows(axis(s.rows)),
        columns(axis(s.columns)),
        channels(divisor(s.channels)),
        height(divisor(by_result ? s.rows.out : s.rows.in)),
        width(divisor(by_result ? s.columns.out : s.columns.in)),
        pixel_major(channels_are_innermost) {}

 private:
  static D divisor(int64_t d) {
    if constexpr (std::is_same_v<D, FastDivisor>)
      return FastDivisor(static_cast<uint32_t>(d));
    else
      return d;
  }
  static PoolAxisOf<N, D> axis(const PoolAxis& a) {
    const auto number = [](int64_t x) { return static_cast<N>(x); };
    return {number(a.in),      number(a.out), number(a.kernel),
            divisor(a.stride), number(a.pad), divisor(a.dilation)};
  }
};
using Windows32 = Windows<int32_t, FastDivisor>;
using Windows64 = Windows<int64_t, int64_t>;

/// From the first element to the last.
int64_t reach(const TensorView& t) {
  int64_t last = 0;
  for (int d = 0; d < t.rank; ++d) last += (t.sizes[d] - 1) * t.strides[d];
  return last;
}

/// Whether 32 bits hold all positions, also those of windows that reach beyond the image, and all
/// offsets.
bool fits_32_bits(const PoolShape& s, std::initializer_list<const TensorView*> tensors) {
  for (const TensorView* t : tensors)
    if (std::max(t->element_count(), reach(*t)) > kLaunchElements) return false;
  const auto fits = [](const PoolAxis& a) {
    return std::max({a.in, a.out, a.stride, a.dilation, a.pad}) <= kLaunchElements / 8 &&
           a.kernel <= kLaunchElements / 8 / std::max<int64_t>(a.dilation, 1) &&
           a.out <= kLaunchElements / std::max<int64_t>(a.stride, 1);
  };
  return fits(s.rows) && fits(s.columns);
}

template <class N>
struct Strides {
  N image, channel, row, column;

  explicit Strides(const TensorView& t)
      : image(static_cast<N>(t.strides[0])),
        channel(static_cast<N>(t.strides[1])),
        row(static_cast<N>(t.strides[2])),
        column(static_cast<N>(t.strides[3])) {}
  __device__ __forceinline__ N plane(N n, N c) const { return n * image + c * channel; }
  __device__ __forceinline__ N at(N i, N j) const { return i * row + j * column; }
};

// Neighbouring threads take neighbouring elements: channels where those are innermost.
template <class W>
struct Element {
  using N = typename W::Position;
  N image, channel, row, column;

  __device__ __forceinline__ Element(int64_t thread, const W& w) {
    N at = static_cast<N>(thread);
    if (w.pixel_major) channel = split(at, w.channels);
    column = split(at, w.width);
    row = split(at, w.height);
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
template <class N>
struct Results {
  int64_t* indices;
  uint8_t* places;
  Strides<N> strides;  // of all results
};

template <class T, class W>
__global__ __launch_bounds__(kThreads) void max_pool_cuda(
    ORTM_GRID_CONSTANT(W) w, ORTM_GRID_CONSTANT(Strides<typename W::Position>) x_strides,
    ORTM_GRID_CONSTANT(Results<typename W::Position>) results, const T* x, T* y, int64_t count) {
  using C = ComputeOf<T>;
  using N = typename W::Position;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread >= count) return;
  const Element<W> e(thread, w);
  const WindowPart<N> down = w.rows.window(e.row), across = w.columns.window(e.column);
  const T* plane = x + x_strides.plane(e.image, e.channel);
  C largest = -std::numeric_limits<C>::infinity();
  uint8_t place = kNoPlace;
  int64_t index = 0;  // torch's: counted through the plane of x
  for (N k = down.first; k < down.last; ++k) {
    const N row = down.start + k * value_of(w.rows.dilation);
    for (N j = across.first; j < across.last; ++j) {
      const N column = across.start + j * value_of(w.columns.dilation);
      const C value = widened(plane[x_strides.at(row, column)]);
      if (value > largest || value != value || place == kNoPlace) {
        largest = value;
        place = static_cast<uint8_t>(k * w.columns.kernel + j);
        index = int64_t{row} * w.columns.in + column;
      }
    }
  }
  const N to = results.strides.plane(e.image, e.channel) + results.strides.at(e.row, e.column);
  if (y) y[to] = narrowed(largest, T{});
  if (results.places) results.places[to] = place;
  if (results.indices) results.indices[to] = index;
}

bool is_pixel_major(const TensorView& t) { return t.strides[1] == 1 && t.sizes[1] > 1; }

/// body(windows): with 32-bit positions where they fit.
template <class Body>
void with_windows(const PoolShape& s, bool by_result, const TensorView& counted,
                  std::initializer_list<const TensorView*> tensors, const Body& body) {
  if (fits_32_bits(s, tensors))
    body(Windows32(s, by_result, is_pixel_major(counted)));
  else
    body(Windows64(s, by_result, is_pixel_major(counted)));
}

void run_max_pool(const KernelArgs& args) {
  const TensorView &x = args.in[0], &y = args.out[0];
  const PoolShape& s = *static_cast<const PoolShape*>(args.prepared);
  const int64_t count = y.element_count();
  if (count == 0) return;
  dispatch_float(x.dtype, [&]<class T> {
    if (halving_pool<T>(args, s)) return;
    with_windows(s, true, y, {&x, &y}, [&]<class W>(const W& windows) {
      using N = typename W::Position;
      const Results<N> results{args.out[1].as<int64_t>(), args.out[2].as<uint8_t>(), Strides<N>(y)};
      ORTM_LAUNCH((max_pool_cuda<T, W>), grid_of(blocks_for(count, kThreads)), kThreads, 0,
                  args.context, windows, Strides<N>(x), results, x.as<T>(), y.as<T>(), count);
    });
  });
}

// --- gradient ------------------------------------------------------------------------------------
template <class N>
struct Sources {
  Strides<N> dy, places, dx;
};

template <class T, class W>
__global__ __launch_bounds__(kThreads) void max_pool_grad_cuda(
    ORTM_GRID_CONSTANT(W) w, ORTM_GRID_CONSTANT(Sources<typename W::Position>) from, const T* dy,
    const uint8_t* places, T* dx, int64_t count) {
  using N = typename W::Position;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread >= count) return;
  const Element<W> e(thread, w);
  const uint8_t* place_plane = places + from.places.plane(e.image, e.channel);
  const T* dy_plane = dy + from.dy.plane(e.image, e.channel);
  ComputeOf<T> sum = 0;
  const N last_row = w.rows.last_window(e.row), last_column = w.columns.last_window(e.column);
  for (N i = w.rows.first_window(e.row); i < last_row; ++i) {
    const N down = w.rows.place(i, e.row);
    if (down < 0) continue;
    for (N j = w.columns.first_window(e.column); j < last_column; ++j) {
      const N across = w.columns.place(j, e.column);
      if (across < 0) continue;
      if (place_plane[from.places.at(i, j)] == down * w.columns.kernel + across)
        sum += widened(dy_plane[from.dy.at(i, j)]);
    }
  }
  dx[from.dx.plane(e.image, e.channel) + from.dx.at(e.row, e.column)] = narrowed(sum, T{});
}

void run_max_pool_grad(const KernelArgs& args) {
  const TensorView &dy = args.in[0], &places = args.in[1], &dx = args.out[0];
  const PoolShape& s = *static_cast<const PoolShape*>(args.prepared);
  const int64_t count = dx.element_count();
  if (count == 0) return;
  dispatch_float(dy.dtype, [&]<class T> {
    if (halving_pool_grad<T>(args, s)) return;
    with_windows(s, false, dx, {&dy, &places, &dx}, [&]<class W>(const W& windows) {
      using N = typename W::Position;
      const Sources<N> from{Strides<N>(dy), Strides<N>(places), Strides<N>(dx)};
      ORTM_LAUNCH((max_pool_grad_cuda<T, W>), grid_of(blocks_for(count, kThreads)), kThreads, 0,
                  args.context, windows, from, dy.as<T>(), places.as<uint8_t>(), dx.as<T>(), count);
    });
  });
}

REGISTER_KERNEL({.op = "MaxPool",
                 .name = "max_pool_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_max_pool,
                 .unsupported = image_pool_unsupported,
                 .output_strides = pooled_strides,
                 .prepare = prepare_max_pool,
                 .layout = LayoutRule::MemoryFormat,
                 .leaves_out_unused = true});
REGISTER_KERNEL({.op = "MaxPoolGrad",
                 .name = "max_pool_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_max_pool_grad,
                 .unsupported = image_pool_unsupported,
                 .output_strides = pooled_strides,
                 .prepare = prepare_max_pool_grad,
                 .layout = LayoutRule::MemoryFormat});

}  // namespace
}  // namespace ortmodule::cuda
