// MaxPool and MaxPoolGrad as in cpu/pool.cpp. Method: a thread per output element; in the
// gradient a thread per element of dx, which looks into the windows around it, so that nothing is
// added by atomics. Bytes moved: x as often as windows overlap, mostly from cache; the rest once.
#include <limits>

#include "kernels/cuda/launch.cuh"
#include "kernels/dtype_dispatch.h"
#include "kernels/pool.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;

struct Strides {
  int64_t image, channel, row, column;

  explicit Strides(const TensorView& t)
      : image(t.strides[0]), channel(t.strides[1]), row(t.strides[2]), column(t.strides[3]) {}
  __device__ __forceinline__ int64_t at(int64_t n, int64_t c, int64_t i, int64_t j) const {
    return n * image + c * channel + i * row + j * column;
  }
};

// Neighbouring threads take neighbouring elements: channels where those are innermost.
struct Element {
  int64_t image, channel, row, column;

  __device__ __forceinline__ Element(int64_t at, const PoolShape& s, int64_t rows, int64_t columns,
                                     bool pixel_major) {
    if (pixel_major) {
      channel = at % s.channels;
      at /= s.channels;
    }
    column = at % columns;
    at /= columns;
    row = at % rows;
    at /= rows;
    if (!pixel_major) {
      channel = at % s.channels;
      at /= s.channels;
    }
    image = at;
  }
};

// Null, like y, if nobody reads them: backward may pool again for the places.
struct Results {
  int64_t* indices;
  uint8_t* places;
  Strides strides;  // of all results
  bool pixel_major;
};

template <class T>
__global__ __launch_bounds__(kThreads) void max_pool_cuda(ORTM_GRID_CONSTANT(PoolShape) s,
                                                          ORTM_GRID_CONSTANT(Strides) x_strides,
                                                          ORTM_GRID_CONSTANT(Results) results,
                                                          const T* x, T* y, int64_t count) {
  using C = ComputeOf<T>;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread >= count) return;
  const Element e(thread, s, s.rows.out, s.columns.out, results.pixel_major);
  const WindowPart down = s.rows.window(e.row), across = s.columns.window(e.column);
  C largest = -std::numeric_limits<C>::infinity();
  uint8_t place = kNoPlace;
  for (int64_t k = down.first; k < down.last; ++k)
    for (int64_t j = across.first; j < across.last; ++j) {
      const C value = computed(x[x_strides.at(e.image, e.channel, down.start + k * s.rows.dilation,
                                              across.start + j * s.columns.dilation)]);
      if (value > largest || value != value || place == kNoPlace) {
        largest = value;
        place = static_cast<uint8_t>(k * s.columns.kernel + j);
      }
    }
  const int64_t to = results.strides.at(e.image, e.channel, e.row, e.column);
  if (y) y[to] = stored<T>(largest);
  if (results.places) results.places[to] = place;
  if (results.indices) results.indices[to] = s.index(e.row, e.column, place);
}

bool is_pixel_major(const TensorView& t) { return t.strides[1] == 1 && t.sizes[1] > 1; }

void run_max_pool(const KernelArgs& args) {
  const TensorView &x = args.in[0], &y = args.out[0];
  const PoolShape& s = *static_cast<const PoolShape*>(args.prepared);
  const Results results{args.out[1].as<int64_t>(), args.out[2].as<uint8_t>(), Strides(y),
                        is_pixel_major(y)};
  const int64_t count = y.element_count();
  dispatch_float(x.dtype, [&]<class T> {
    ORTM_LAUNCH(max_pool_cuda<T>, grid_of(blocks_for(count, kThreads)), kThreads, 0, args.context,
                s, Strides(x), results, x.as<T>(), y.as<T>(), count);
  });
}

// --- gradient ------------------------------------------------------------------------------------
struct Sources {
  Strides dy, places, dx;
  bool pixel_major;
};

template <class T>
__global__ __launch_bounds__(kThreads) void max_pool_grad_cuda(ORTM_GRID_CONSTANT(PoolShape) s,
                                                               ORTM_GRID_CONSTANT(Sources) from,
                                                               const T* dy, const uint8_t* places,
                                                               T* dx, int64_t count) {
  using C = ComputeOf<T>;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread >= count) return;
  const Element e(thread, s, s.rows.in, s.columns.in, from.pixel_major);
  C sum = 0;
  for (int64_t i = s.rows.first_window(e.row); i < s.rows.last_window(e.row); ++i)
    for (int64_t j = s.columns.first_window(e.column); j < s.columns.last_window(e.column); ++j) {
      const int64_t down = s.rows.place(i, e.row), across = s.columns.place(j, e.column);
      if (down < 0 || across < 0) continue;
      if (places[from.places.at(e.image, e.channel, i, j)] == down * s.columns.kernel + across)
        sum += computed(dy[from.dy.at(e.image, e.channel, i, j)]);
    }
  dx[from.dx.at(e.image, e.channel, e.row, e.column)] = stored<T>(sum);
}

void run_max_pool_grad(const KernelArgs& args) {
  const TensorView &dy = args.in[0], &places = args.in[1], &dx = args.out[0];
  const PoolShape& s = *static_cast<const PoolShape*>(args.prepared);
  const Sources from{Strides(dy), Strides(places), Strides(dx), is_pixel_major(dx)};
  const int64_t count = dx.element_count();
  dispatch_float(dy.dtype, [&]<class T> {
    ORTM_LAUNCH(max_pool_grad_cuda<T>, grid_of(blocks_for(count, kThreads)), kThreads, 0,
                args.context, s, from, dy.as<T>(), places.as<uint8_t>(), dx.as<T>(), count);
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
