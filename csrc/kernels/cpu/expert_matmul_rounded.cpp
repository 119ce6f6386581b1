// ExpertMatMul with an accuracy level of 4: x is rounded to 8 bits by blocks.
#include "kernels/cpu/expert_rows.h"
#include "kernels/cpu/integer_copies.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

#if defined(__AVX2__)

void expert_matmul(const KernelArgs& args) {
  const int64_t bits = args.facts.node().attrs.integer("bits");
  multiply_by_expert(args, [&](int64_t expert, const ProductRows& p) {
    const BlockWeights w = expert_weights(args, expert);
    switch (bits) {
      case 2: return multiply_rounded<2>(args.context, p, w);
      case 4: return multiply_rounded<4>(args.context, p, w);
      default: return multiply_rounded<8>(args.context, p, w);
    }
  });
}

Reason unsupported(const StepFacts& facts) {
  const Attrs& attrs = facts.node().attrs;
  if (!attrs.flag("rounds_x")) return "x is not to be rounded to 8 bits";
  if (!rounds_rows(attrs.integer("bits"), attrs.integer("block_size")))
    return "the processor has no exact sums of such products";
  return other_copy_runs(facts);
}

REGISTER_CPU_KERNEL({.op = "ExpertMatMul",
                     .name = "expert_matmul_rounded_cpu",
                     .dtypes = {DType::Float32},
                     .run = expert_matmul,
                     .unsupported = unsupported,
                     .workspace_bytes = expert_workspace,
                     .priority = 1 + kIntegerPriority});

#endif

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
