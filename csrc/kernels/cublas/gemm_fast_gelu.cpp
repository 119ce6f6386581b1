// GemmFastGelu through cuBLASLt: bias, the tanh form of Gelu and the matrix before it, which
// backward reads, in the epilogue of the product. Where the library names no algorithm, or the
// epilogue takes longer, the parts do it (kernels/cuda/gemm_fast_gelu.cpp).
//
// Left out: the epilogues for Gelu's gradient (DGELU, DGELU_BGRAD) on the product that makes dy.
// GeluGrad shares its pointwise group with what stands beside it, a dropout's gradient and casts,
// and the sum of its rows comes with the weight's gradient (WeightBiasGrad): what would be saved is
// one write and one read of dy where nothing stands between, for one more op that is found in the
// joint graph alone.
#include "kernels/cublas/followed_product.h"

namespace ortmodule::cublas {
namespace {

/// What the library demands of the auxiliary matrix's rows, in elements.
constexpr int64_t kRowMultiple = 8;

bool has_bias(const StepFacts& facts) {
  return facts.inputs.size() > 2 && facts.inputs[2].dtype != DType::Undefined;
}

void gemm_fast_gelu(const KernelArgs& args);

struct Prepared : FollowedProduct {
  explicit Prepared(const StepFacts& facts)
      : FollowedProduct(
            facts,
            Problem(matmul_problem(facts), facts.outputs[0].dtype,
                    has_bias(facts) ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX),
            gemm_fast_gelu) {}
};

void gemm_fast_gelu(const KernelArgs& args) {
  const auto& prepared = *static_cast<const Prepared*>(args.prepared);
  Operands operands{.a = args.in[0].data,
                    .b = args.in[1].data,
                    .y = args.out[0].data,
                    .auxiliary = args.out[1].data};
  if (prepared.product.problem().reads_or_writes_vector()) operands.vector = args.in[2].data;
  prepared.run(operands, args);
}

Reason gemm_fast_gelu_unsupported(const StepFacts& facts) {
  if (Reason reason = epilogue_unwanted()) return reason;
  if (Reason reason = product_unsupported(facts)) return reason;
  const Sizes& y = facts.outputs[0].layout.sizes;
  if (!y.empty() && y[1] % kRowMultiple != 0)
    return str("rows of ", y[1], " elements are no multiple of ", kRowMultiple);
  if (!y.empty())
    if (Reason reason = second_result_unsupported(matmul_problem(facts), facts.outputs[0].dtype))
      return reason;
  if (has_bias(facts) && !is_contiguous(facts.inputs[2].layout)) return "the bias is strided";
  return {};
}

const KernelRegistrar kGemmFastGelu(with_product<Prepared>({
    .op = "GemmFastGelu",
    .name = "gemm_fast_gelu_cublaslt",
    .dtypes = {DType::Float16, DType::BFloat16},
    .run = gemm_fast_gelu,
    .unsupported = gemm_fast_gelu_unsupported,
    .layout = LayoutRule::Matrix,
    .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Any},
}));

}  // namespace
}  // namespace ortmodule::cublas
