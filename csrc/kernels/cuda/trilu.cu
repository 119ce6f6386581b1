// Trilu: the upper (j - i >= k) or lower (j - i <= k) triangle of the last two dimensions, zero
// elsewhere. Bytes moved: x and y once.
#include "kernels/cuda/fast_divisor.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/dtype_dispatch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;

// Position: int32_t with FastDivisor, or int64_t for both.
template <class T, class Position, class Divisor>
__global__ __launch_bounds__(kThreads) void trilu_cuda(const T* x, T* y, Divisor rows,
                                                       Divisor columns, int64_t count, bool upper,
                                                       int64_t k) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= count) return;
  const auto position = static_cast<Position>(at);
  const Position line = quotient(position, columns);
  const Position row = line - quotient(line, rows) * value_of(rows);
  const int64_t distance = int64_t{position - line * value_of(columns)} - row;  // column - row
  y[at] = (upper ? distance >= k : distance <= k) ? x[at] : T{};
}

void run_trilu(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  const TensorView& x = args.in[0];
  const int64_t count = x.element_count();
  if (count == 0) return;
  const int64_t rows = x.sizes[x.rank - 2], columns = x.sizes[x.rank - 1];
  const bool upper = attrs.integer("upper", 1) != 0;
  const int64_t k = attrs.integer("k", 0);
  const dim3 grid = grid_of(blocks_for(count, kThreads));
  dispatch_width(size_of(x.dtype), [&]<class T> {
    if (count <= kLaunchElements)
      ORTM_LAUNCH((trilu_cuda<T, int32_t, FastDivisor>), grid, kThreads, 0, args.context, x.as<T>(),
                  args.out[0].as<T>(), FastDivisor(static_cast<uint32_t>(rows)),
                  FastDivisor(static_cast<uint32_t>(columns)), count, upper, k);
    else
      ORTM_LAUNCH((trilu_cuda<T, int64_t, int64_t>), grid, kThreads, 0, args.context, x.as<T>(),
                  args.out[0].as<T>(), rows, columns, count, upper, k);
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
