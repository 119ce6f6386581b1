// Trilu: the upper (j - i >= k) or lower (j - i <= k) triangle of the last two dimensions, zero
// elsewhere. Bytes moved: x and y once.
#include "kernels/cuda/launch.cuh"
#include "kernels/dtype_dispatch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ __launch_bounds__(kThreads) void trilu_cuda(const T* x, T* y, int64_t rows,
                                                       int64_t columns, int64_t count, bool upper,
                                                       int64_t k) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= count) return;
  const int64_t line = at / columns;
  const int64_t distance = at - line * columns - line % rows;  // column - row
  y[at] = (upper ? distance >= k : distance <= k) ? x[at] : T{};
}

void run_trilu(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  const TensorView& x = args.in[0];
  const int64_t count = x.element_count();
  dispatch_width(size_of(x.dtype), [&]<class T> {
    ORTM_LAUNCH(trilu_cuda<T>, grid_of(blocks_for(count, kThreads)), kThreads, 0, args.context,
                x.as<T>(), args.out[0].as<T>(), x.sizes[x.rank - 2], x.sizes[x.rank - 1], count,
                attrs.integer("upper", 1) != 0, attrs.integer("k", 0));
  });
}

REGISTER_KERNEL({.op = "Trilu",
                 .name = "trilu_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = run_trilu,
                 .inplace = true});

}  // namespace
}  // namespace ortmodule::cuda
