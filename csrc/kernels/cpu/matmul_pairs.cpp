// MatMul, FusedMatMul and Gemm of bfloat16 where the processor multiplies pairs of them: torch's
// library (oneDNN) packs strided batches and adds a bias in passes of their own, and generates code
// for each shape, which is never freed.
#include "kernels/cpu/matmul_operands.h"
#include "kernels/cpu/pair_copies.h"
#include "kernels/cpu/pair_product.h"
#include "kernels/mixed_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

#if defined(__AVX512BF16__)

Reason unsupported(const StepFacts& facts) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512bf16")) return "the processor does not multiply pairs";
  const ProductOperands p(facts);
  if (p.multiplications() == 0) return "nothing is multiplied";
  // The right factor is packed, which so few rows do not pay.
  constexpr int64_t kLeastRows = 8;
  if (p.problem.rows < kLeastRows) return "the left factor has few rows";
  if (facts.outputs[0].dtype != DType::BFloat16) return "the result has another type";
  if (p.beta != 0.0 && (p.c_row_stride != 0 || p.c_column_stride != 1)) return "the term is no row";
  return {};
}

// All of mixed_product.h.
template <class Left, class Out>
void multiply(const KernelArgs& args, const ProductOperands& p) {
  const MatMulProblem& problem = p.problem;
  const PairProduct product(problem.rows, problem.columns, problem.inner);
  PairProduct::Scale scale;
  scale.alpha = static_cast<float>(p.alpha);
  scale.beta = static_cast<float>(p.beta);
  if (p.beta != 0.0 && args.in[2].data == args.out[0].data)
    scale.adds = true;
  else if (p.beta != 0.0)
    scale.term = args.in[2].as<BFloat16>();
  for_each_matrix(args, p, product.units(), kProductGrain,
                  [&](int64_t i, int64_t first, int64_t last) {
                    const ProductMatrices<BFloat16> right(args, p, i);
                    const ProductMatrices<Left> left(args, p, i);
                    const ProductMatrices<Out> result(args, p, i);
                    product.run(first, last, left.a, right.b, scale, result.y);
                  });
}

void run(const KernelArgs& args) {
  const auto& p = *static_cast<const ProductOperands*>(args.prepared);
  if (args.out[0].dtype == DType::BFloat16)
    multiply<BFloat16, BFloat16>(args, p);
  else if (args.in[0].dtype == DType::BFloat16)
    multiply<BFloat16, float>(args, p);
  else
    multiply<float, float>(args, p);
}

KernelDef pair_kernel(std::string_view op, std::string_view name) {
  return {.op = op,
          .name = name,
          .dtypes = {DType::BFloat16},
          .run = run,
          .unsupported = unsupported,
          .prepare = prepare_product,
          .layout = LayoutRule::Matrix,
          .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Any},
          .priority = 3};
}

REGISTER_CPU_KERNEL((pair_kernel("MatMul", "matmul_pairs_cpu")));
REGISTER_CPU_KERNEL((pair_kernel("FusedMatMul", kMixedMatMul)));
REGISTER_CPU_KERNEL((pair_kernel("Gemm", kMixedGemm)));

#endif

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
