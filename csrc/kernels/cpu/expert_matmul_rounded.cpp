// ExpertMatMul with an accuracy level of 4: x is rounded to 8 bits by blocks.
#include "kernels/cpu/expert_rows.h"
#include "kernels/cpu/integer_copies.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

#if defined(__AVX2__)

void expert_matmul(const KernelArgs& args) {
  multiply_by_expert(args, [&](int64_t expert, const ProductRows& p) {
    const BlockWeights w = expert_weights(args, expert);
    with_bits(args.facts.node().attrs.integer("bits"),
              [&](auto bits) { multiply_rounded<decltype(bits)::value>(args.context, p, w); });
  });
}

REGISTER_CPU_KERNEL({.op = "ExpertMatMul",
                     .name = "expert_matmul_rounded_cpu",
                     .dtypes = {DType::Float32},
                     .run = expert_matmul,
                     .unsupported = rounding_unsupported,
                     .workspace_bytes = expert_workspace,
                     .priority = 1 + kIntegerPriority});

#endif

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
