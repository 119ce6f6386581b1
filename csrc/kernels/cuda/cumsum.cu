// CumSum along `axis`, from the end if `reverse`, without the element itself if `exclusive`. Floats
// add up in double, as in PyTorch.
// Method: along the last axis a block scans each line in pieces of its threads: warps by shuffles,
// then the warps' totals, then the carry from the piece before. With columns behind the axis each
// thread adds up one of them. Bytes moved: x and y once.
#include "kernels/axis.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/dtype_dispatch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
using SumOf = std::conditional_t<std::is_floating_point_v<ComputeOf<T>>, double, int64_t>;

/// Lines of `count` elements, `stride` apart; negative strides walk from the end.
struct Lines {
  int64_t lines = 0, count = 0, inner = 1;
  int64_t stride = 1, start = 0;
  bool exclusive = false;
  __device__ __forceinline__ int64_t first(int64_t line) const {
    return line / inner * count * inner + line % inner + start;
  }
};

template <class T>
__global__ __launch_bounds__(kThreads) void cumsum_columns_cuda(ORTM_GRID_CONSTANT(Lines) p,
                                                                const T* x, T* y) {
  const int64_t line = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (line >= p.lines) return;
  int64_t at = p.first(line);
  SumOf<T> sum = 0;
  for (int64_t i = 0; i < p.count; ++i, at += p.stride) {
    const SumOf<T> before = sum;
    sum += static_cast<SumOf<T>>(computed(x[at]));
    y[at] = stored<T>(p.exclusive ? before : sum);
  }
}

template <class T>
__global__ __launch_bounds__(kThreads) void cumsum_lines_cuda(ORTM_GRID_CONSTANT(Lines) p,
                                                              const T* x, T* y) {
  using Sum = SumOf<T>;
  ORTM_DYNAMIC_SHARED(Sum, totals);  // one per warp
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = p.first(blockIdx.x);
  Sum carry = 0;
  for (int64_t begin = 0; begin < p.count; begin += blockDim.x) {
    const int64_t i = begin + threadIdx.x;
    const int64_t at = first + i * p.stride;
    Sum sum = i < p.count ? static_cast<Sum>(computed(x[at])) : Sum{0};
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const Sum other = __shfl_up_sync(kWholeWarp, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (lane == kWarp - 1) totals[warp] = sum;
    __syncthreads();
    Sum before = carry;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) before += totals[w];
      carry += totals[w];
    }
    __syncthreads();
    const Sum left = __shfl_up_sync(kWholeWarp, sum, 1);
    if (p.exclusive) sum = lane > 0 ? left : Sum{0};
    if (i < p.count) y[at] = stored<T>(before + sum);
  }
}

void run_cumsum(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  const AxisSplit split = split_at(args.facts.inputs[0].layout.sizes, attrs.integer("axis", 0));
  const bool reverse = attrs.flag("reverse");
  Lines p;
  p.lines = split.axis == 0 ? 0 : split.outer * split.inner;
  p.count = split.axis;
  p.inner = split.inner;
  p.stride = reverse ? -split.inner : split.inner;
  p.start = reverse ? (split.axis - 1) * split.inner : 0;
  p.exclusive = attrs.flag("exclusive");
  dispatch_real(args.in[0].dtype, [&]<class T> {
    const T* x = args.in[0].as<T>();
    T* y = args.out[0].as<T>();
    if (split.inner > 1) {
      ORTM_LAUNCH(cumsum_columns_cuda<T>, grid_of(blocks_for(p.lines, kThreads)), kThreads, 0,
                  args.context, p, x, y);
    } else {
      const int threads = threads_for(p.count, kThreads);
      ORTM_LAUNCH(cumsum_lines_cuda<T>, grid_of(p.lines), static_cast<unsigned>(threads),
                  sizeof(SumOf<T>) * kWarp, args.context, p, x, y);
    }
  });
}

REGISTER_KERNEL({.op = "CumSum",
                 .name = "cumsum_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats | kIntegers,
                 .run = run_cumsum,
                 .inplace = true});

}  // namespace
}  // namespace ortmodule::cuda
