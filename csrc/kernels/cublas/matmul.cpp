// MatMul, FusedMatMul and Gemm through cuBLASLt (product.h): the bias of a Gemm is added in the
// product's epilogue. Where the library names no algorithm, ATen's kernel makes the product.
#include "kernels/cublas/fallback.h"
#include "kernels/cublas/product.h"

namespace ortmodule::cublas {
namespace {

Problem problem_of(const StepFacts& facts) {
  const MatMulProblem shape = matmul_problem(facts);
  const bool has_c = facts.inputs.size() > 2 && facts.inputs[2].dtype != DType::Undefined;
  bool adds = false;
  if (has_c) {
    const Sizes& c = facts.inputs[2].layout.sizes;
    adds = c.size() == 2 && c[0] == shape.rows && shape.rows != 1;
  }
  const bool bias = has_c && !adds;
  Problem problem(shape, facts.outputs[0].dtype,
                  bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
  problem.adds = adds;
  if (adds) problem.c_leading = facts.inputs[2].layout.strides[0];
  return problem;
}

void matmul(const KernelArgs& args);

struct Prepared {
  Product product;
  Fallback fallback;
  double alpha = 1.0;
  double beta = 0.0;

  explicit Prepared(const StepFacts& facts) : product(problem_of(facts)), fallback(facts, matmul) {
    const Attrs& attrs = facts.node().attrs;
    alpha = attrs.number("alpha", 1.0);
    beta = product.problem().adds ? attrs.number("beta", 1.0) : 0.0;
  }
};

void* shifted(void* data, int64_t bytes) { return static_cast<char*>(data) + bytes; }

void matmul(const KernelArgs& args) {
  const auto& prepared = *static_cast<const Prepared*>(args.prepared);
  const Problem& problem = prepared.product.problem();
  const auto element = static_cast<int64_t>(size_of(problem.dtype));
  for (const BlasOffsets& at : problem.shape.calls) {
    Operands operands{.a = shifted(args.in[0].data, at.a * element),
                      .b = shifted(args.in[1].data, at.b * element),
                      .y = shifted(args.out[0].data, at.y * element)};
    if (problem.adds) operands.c = args.in[2].data;
    if (problem.reads_or_writes_vector()) operands.vector = args.in[2].data;
    if (!prepared.product.run(prepared.alpha, prepared.beta, operands, args))
      return prepared.fallback.run(args);
  }
}

/// C must be a row that is added as it is, or as large as the result and row-major.
Reason gemm_unsupported(const StepFacts& facts) {
  if (Reason reason = product_unsupported(facts)) return reason;
  if (facts.inputs.size() < 3 || facts.inputs[2].dtype == DType::Undefined ||
      facts.outputs[0].layout.sizes.empty())
    return {};
  const Layout& c = facts.inputs[2].layout;
  const Sizes& y = facts.outputs[0].layout.sizes;
  if (c.sizes == y && y[0] != 1)
    return is_inner_contiguous(c) && c.strides[0] >= y[1] ? Reason()
                                                          : Reason("the addend is not row-major");
  if (c.sizes.empty() || element_count(c.sizes) != y[1] || c.sizes.back() != y[1])
    return "the addend is neither a row nor of the result's size";
  if (c.sizes.back() != 1 && c.strides.back() != 1) return "the addend is strided";
  if (facts.node().attrs.number("beta", 1.0) != 1.0) return "a bias is not scaled";
  return bias_unsupported(matmul_problem(facts));
}

KernelDef product(std::string_view op, std::string_view name) {
  return with_product<Prepared>({
      .op = op,
      .name = name,
      .dtypes = kAllFloats,
      .run = matmul,
      .unsupported = product_unsupported,
      .layout = LayoutRule::Matrix,
  });
}

KernelDef gemm() {
  KernelDef def = product("Gemm", "gemm_cublaslt");
  def.unsupported = gemm_unsupported;
  def.input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Any};
  return def;
}

const KernelRegistrar kMatMul(product("MatMul", "matmul_cublaslt"));
const KernelRegistrar kFusedMatMul(product("FusedMatMul", "fused_matmul_cublaslt"));
const KernelRegistrar kGemm(gemm());

}  // namespace
}  // namespace ortmodule::cublas
