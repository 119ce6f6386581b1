// UnscaleGradients: see kernels/unscale_gradients.h. One pass, bytes moved: each operand once.
#include "kernels/cuda/tensor_table.cuh"
#include "kernels/unscale_gradients.h"

namespace ortmodule::cuda {
namespace {

enum List { kGrad, kMasterGrad, kLists };
using Table = TensorTable<kLists>;

/// Elements of a thread at a time.
constexpr int kElements = 4;

template <class T>
__global__ void __launch_bounds__(kTableThreads)
    unscale(ORTM_GRID_CONSTANT(Table) table, ComputeOf<T> factor, float* found_inf) {
  using C = ComputeOf<T>;
  const int tensor = table.tensor_of(blockIdx.x);
  const int64_t begin =
      static_cast<int64_t>(blockIdx.x - table.first_chunk[tensor]) * kChunkElements;
  const int64_t rest = table.elements[tensor] - begin;
  const int64_t count = rest < kChunkElements ? rest : kChunkElements;
  const T* grad = static_cast<const T*>(table.data[kGrad][tensor]) + begin;
  C* master_grad = static_cast<C*>(table.data[kMasterGrad][tensor]) + begin;
  uint32_t found = 0;
  const bool vectors = is_aligned<T, kElements>(grad) && is_aligned<C, kElements>(master_grad);
  for (int64_t at = int64_t{kElements} * threadIdx.x; at < count; at += kElements * kTableThreads) {
    const int some = static_cast<int>(count - at < kElements ? count - at : kElements);
    T g[kElements];
    C product[kElements];
    load_some(g, grad + at, some, vectors);
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      product[k] = computed(g[k]) * factor;
      found |= not_finite(product[k]);
    }
    store_some(master_grad + at, product, some, vectors);
  }
  if (found) *found_inf = 1.0f;  // whoever writes, it is the same
}

void run_unscale(const KernelArgs& args) {
  const UnscaleOperands operands{args.in, args.out};
  if (operands.count() == 0) return;
  const double factor = args.facts.node().attrs.number("factor");
  for_each_table<kLists>(
      operands.count(), [&](size_t i) { return operands.in[i].sizes[0]; },
      [&](int list, size_t i) { return (list == kGrad ? operands.in[i] : operands.out[i]).data; },
      [&](const Table& table) {
        const dim3 grid = grid_of(table.first_chunk[table.tensors]);
        dispatch_float(operands.in[0].dtype, [&]<class T> {
          ORTM_LAUNCH(unscale<T>, grid, kTableThreads, 0, args.context, table,
                      static_cast<ComputeOf<T>>(factor), operands.found_inf());
        });
      });
}

REGISTER_KERNEL({.op = "UnscaleGradients",
                 .name = "unscale_gradients_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_unscale});

}  // namespace
}  // namespace ortmodule::cuda
