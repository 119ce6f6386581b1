// ArgMax, ArgMin: the index along `axis` of the first largest (smallest) element; NaN counts as
// both. Method: a group of lanes or a block per line, a thread per line where columns lie behind
// the axis. Bytes moved: x once.
#include "kernels/axis.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/dtype_dispatch.h"

namespace ortmodule::cuda {
namespace {

template <class C>
struct Candidate {
  C value;
  int64_t index;  // -1: none yet
};

// Of two candidates the better one, of equal ones the first: the same in any order.
template <bool largest>
struct Better {
  template <class C>
  __device__ __forceinline__ Candidate<C> operator()(Candidate<C> a, Candidate<C> b) const {
    if (a.index < 0) return b;
    if (b.index < 0) return a;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan ? a : b;
    if (a_nan || a.value == b.value) return a.index < b.index ? a : b;
    return (largest ? a.value > b.value : a.value < b.value) ? a : b;
  }
};

// Values are widened to 8 bytes, so that a candidate has whole words.
template <class T>
using ValueOf = std::conditional_t<std::is_floating_point_v<ComputeOf<T>>, double, int64_t>;

template <bool largest, class T>
__global__ __launch_bounds__(512) void arg_reduce_cuda(const T* x, int64_t* y, int64_t outputs,
                                                       int64_t count, int64_t inner, int lanes) {
  using Best = Candidate<ValueOf<T>>;
  ORTM_DYNAMIC_SHARED(Best, scratch);
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t output = int64_t{blockIdx.x} * (static_cast<int>(blockDim.x) / lanes) +
                         static_cast<int>(threadIdx.x) / lanes;
  const int64_t base = output / inner * count * inner + output % inner;
  Best best{0, -1};
  if (output < outputs)
    for (int64_t i = lane; i < count; i += lanes)
      best =
          Better<largest>()(best, Best{static_cast<ValueOf<T>>(computed(x[base + i * inner])), i});
  best = row_reduce(best, Better<largest>(), lanes, scratch);
  if (lane == 0 && output < outputs) y[output] = best.index;
}

template <bool largest>
void run_arg_reduce(const KernelArgs& args) {
  const AxisSplit split =
      split_at(args.facts.inputs[0].layout.sizes, args.facts.node().attrs.integer("axis", 0));
  const int64_t outputs = split.outer * split.inner;
  ORTM_CHECK(split.axis > 0 || outputs == 0, "[", args.facts.node().op,
             "] the axis must have elements, but its size is 0");
  const RowGroups groups = split.inner > 1 ? RowGroups{1, 128} : row_groups(split.axis, 8);
  dispatch_real(args.in[0].dtype, [&]<class T> {
    ORTM_LAUNCH((arg_reduce_cuda<largest, T>), grid_of(blocks_for(outputs, groups.rows())),
                static_cast<unsigned>(groups.threads), sizeof(Candidate<ValueOf<T>>) * kWarp,
                args.context, args.in[0].as<T>(), args.out[0].as<int64_t>(), outputs, split.axis,
                split.inner, groups.lanes);
  });
}

Reason arg_unsupported(const StepFacts& facts) {
  if (facts.outputs[0].dtype != DType::Int64) return "the index is not an int64";
  return {};
}

REGISTER_KERNEL({.op = "ArgMax",
                 .name = "arg_max_cuda",
                 .device = Device::CUDA,
                 .dtypes = kRealTypes,
                 .run = run_arg_reduce<true>,
                 .unsupported = arg_unsupported});
REGISTER_KERNEL({.op = "ArgMin",
                 .name = "arg_min_cuda",
                 .device = Device::CUDA,
                 .dtypes = kRealTypes,
                 .run = run_arg_reduce<false>,
                 .unsupported = arg_unsupported});

}  // namespace
}  // namespace ortmodule::cuda
