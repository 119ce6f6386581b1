// UnscaleGradients: see kernels/unscale_gradients.h. One pass, bytes moved: each operand once.
#include "kernels/unscale_gradients.h"

#include <atomic>

#include "kernels/cpu/row_math.h"
#include "kernels/cpu/tensor_shares.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

template <class T>
__attribute__((noinline)) uint32_t unscale_vector(ComputeOf<T> factor, int64_t count, const T* grad,
                                                  ComputeOf<T>* master_grad) {
  uint32_t found = 0;
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const ComputeOf<T> product = computed(grad[i]) * factor;
    master_grad[i] = product;
    found |= not_finite(product);
  }
  return found;
}

void run_unscale(const KernelArgs& args) {
  const UnscaleOperands operands{args.in, args.out};
  if (operands.count() == 0) return;
  const double factor = args.facts.node().attrs.number("factor");
  const TensorShares shares(static_cast<int64_t*>(args.workspace), operands.count(),
                            [&](size_t i) { return operands.in[i].sizes[0]; });
  dispatch_float(operands.in[0].dtype, [&]<class T> {
    using C = ComputeOf<T>;
    shares.run(args.context, [&](size_t i, int64_t first, int64_t last) {
      if (unscale_vector(static_cast<C>(factor), last - first, operands.in[i].as<T>() + first,
                         operands.out[i].as<C>() + first))
        std::atomic_ref(*operands.found_inf()).store(1.0f, std::memory_order_relaxed);
    });
  });
}

REGISTER_CPU_KERNEL({.op = "UnscaleGradients",
                     .name = "unscale_gradients_cpu",
                     .dtypes = kAllFloats,
                     .run = run_unscale,
                     .workspace_bytes = [](const StepFacts& facts) {
                       const int64_t tensors = facts.node().attrs.integer("tensors");
                       return static_cast<size_t>(tensors + 1) * sizeof(int64_t);
                     }});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
