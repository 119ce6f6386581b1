// Range: y[i] = start + i delta, exact for integers. Bytes moved: y once.
#include "kernels/cuda/launch.cuh"
#include "kernels/dtype_dispatch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;

// S: int64_t where start and delta are integers, else double.
template <class T, class S>
__global__ __launch_bounds__(kThreads) void range_cuda(T* y, S start, S delta, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) y[i] = stored<T>(static_cast<ComputeOf<T>>(start + static_cast<S>(i) * delta));
}

void run_range(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  const TensorView& y = args.out[0];
  const int64_t count = y.element_count();
  const auto is_integer = [&](std::string_view name) {
    return std::holds_alternative<DimExpr>(*attrs.find(name));
  };
  const bool integers = is_integer("start") && is_integer("delta");
  const dim3 grid = grid_of(blocks_for(count, kThreads));
  dispatch_real(y.dtype, [&]<class T> {
    if (integers) {
      ORTM_LAUNCH((range_cuda<T, int64_t>), grid, kThreads, 0, args.context, y.as<T>(),
                  attrs.integer("start"), attrs.integer("delta"), count);
    } else {
      ORTM_LAUNCH((range_cuda<T, double>), grid, kThreads, 0, args.context, y.as<T>(),
                  attrs.number("start"), attrs.number("delta"), count);
    }
  });
}

REGISTER_KERNEL({.op = "Range",
                 .name = "range_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats | kIntegers,
                 .run = run_range});

}  // namespace
}  // namespace ortmodule::cuda
