// ExpertMatMul: weights in float32, and in blocks of few bits.
#include "kernels/cpu/expert_rows.h"
#include "kernels/cpu/streamed_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// y = x w^T, with w [columns, inner].
void multiply_floats(const KernelContext& context, const ProductRows& p, const float* w) {
  const StridedMatrix<const float> x{p.x, p.rows, p.inner, p.inner, 1};
  const StridedMatrix<const float> right{w, p.inner, p.columns, 1, p.inner};
  const auto run = [&](const auto& product, int64_t grain) {
    const int64_t work = p.rows * p.columns * p.inner;
    const int64_t each = std::max<int64_t>(1, ceil_div(work, product.units()));
    parallel_ranges(
        context, product.units(), ceil_div(grain, each),
        [&](int64_t begin, int64_t end) { product.run(begin, end, x, right, 1.0f, false, p.y); });
  };
  using Streamed = StreamedProduct<float>;
  if (Streamed::pays(p.rows, p.columns, p.inner, true))
    run(Streamed(p.rows, p.columns, p.inner), Streamed::kGrain);
  else
    run(BlockedProduct<float>(p.rows, p.columns, p.inner), 1 << 20);
}

void expert_matmul(const KernelArgs& args) {
  const int64_t bits = args.facts.node().attrs.integer("bits");
  multiply_by_expert(args, [&](int64_t expert, const ProductRows& p) {
    if (bits == 32)
      return multiply_floats(args.context, p,
                             args.in[2].as<float>() + expert * p.inner * p.columns);
    const BlockWeights w = expert_weights(args, expert);
    with_bits(bits, [&](auto each) { multiply_blocks<decltype(each)::value>(args.context, p, w); });
  });
}

REGISTER_CPU_KERNEL({.op = "ExpertMatMul",
                     .name = "expert_matmul_cpu",
                     .dtypes = {DType::Float32},
                     .run = expert_matmul,
                     .workspace_bytes = expert_workspace});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
