// MatMul, FusedMatMul and Gemm of float32 and float64 by our own product: where torch's library is
// no faster, and where the product is so small that its dispatch and threads would take longer.
#include "kernels/cpu/matmul_operands.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// MKL takes its fastest code on processors of Intel only.
bool library_is_slower() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

Reason unsupported(const StepFacts& facts) {
  if (kVectorBytes < 32) return "the library has longer vectors";
  const MatMulProblem problem = matmul_problem(facts);
  const int64_t multiplications = problem.rows * problem.columns * problem.inner;
  if (multiplications == 0) return "nothing is multiplied";
  // MKL wakes other threads for more than this only; below, toy models keep the bits of eager.
  constexpr int64_t kTiny = 4096;
  if (multiplications <= kTiny) return "the product is tiny";
  // The right factor is packed, which so few rows do not pay.
  if (problem.rows < 4) return "the left factor has few rows";
  constexpr int64_t kSmall = int64_t{1} << 21;  // 30 us of one core; torch's dispatch takes 2 us
  static const bool is_faster = library_is_slower();
  if (multiplications > kSmall && !is_faster) return "torch's library is as fast";
  return {};
}

template <class C>
void multiply(const KernelArgs& args, const ProductOperands& p) {
  if (streams<C>(p.problem)) return multiply_streamed<C>(args, p);
  multiply_in_blocks<C>(args, p);
}

void run(const KernelArgs& args) {
  const auto& p = *static_cast<const ProductOperands*>(args.prepared);
  if (args.in[0].dtype == DType::Float64)
    multiply<double>(args, p);
  else
    multiply<float>(args, p);
}

KernelDef matmul_kernel(std::string_view op, std::string_view name) {
  return {.op = op,
          .name = name,
          .dtypes = kFloats,
          .run = run,
          .unsupported = unsupported,
          .prepare = prepare_product,
          .layout = LayoutRule::Matrix,
          .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Any},
          .priority = 2};
}

REGISTER_CPU_KERNEL((matmul_kernel("MatMul", "matmul_cpu")));
REGISTER_CPU_KERNEL((matmul_kernel("FusedMatMul", "fused_matmul_cpu")));
REGISTER_CPU_KERNEL((matmul_kernel("Gemm", "gemm_cpu")));

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
