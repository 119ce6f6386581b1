// WeightBiasGrad through cuBLASLt: the product dy' x sums the rows of dy on the way, in an order of
// the library's that belongs to its algorithm, so that it is the same in every run. Where the
// library names none, or it takes longer, the parts do it (kernels/cuda/weight_bias_grad.cpp).
// Where products of float32 may round to TF32, the sum may as well.
#include "kernels/cublas/followed_product.h"
#include "kernels/step_part.h"

namespace ortmodule::cublas {
namespace {

bool transposed(const StepFacts& facts) { return facts.node().op == "WeightBiasGradTransposed"; }

/// As the product a' b: (dy, x), or (x, dy).
StepFacts product_facts(const StepFacts& facts) {
  std::vector<OperandFacts> operands = facts.inputs;
  if (transposed(facts)) std::swap(operands[0], operands[1]);
  return facts_of_node("FusedMatMul", {{"alpha", 1.0}, {"transA", 1}, {"transB", 0}},
                       std::move(operands), {facts.outputs[0]});
}

/// The library's second operand is our a.
cublasLtEpilogue_t epilogue_of(const StepFacts& facts) {
  return transposed(facts) ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB;
}

void weight_bias_grad(const KernelArgs& args);

struct Prepared : FollowedProduct {
  bool swapped;

  explicit Prepared(const StepFacts& facts)
      : FollowedProduct(facts,
                        Problem(matmul_problem(product_facts(facts)), facts.outputs[0].dtype,
                                epilogue_of(facts)),
                        weight_bias_grad),
        swapped(transposed(facts)) {}
};

void weight_bias_grad(const KernelArgs& args) {
  const auto& prepared = *static_cast<const Prepared*>(args.prepared);
  const Operands operands{.a = args.in[prepared.swapped ? 1 : 0].data,
                          .b = args.in[prepared.swapped ? 0 : 1].data,
                          .y = args.out[0].data,
                          .vector = args.out[1].data};
  prepared.run(operands, args);
}

Reason weight_bias_grad_unsupported(const StepFacts& facts) {
  if (Reason reason = epilogue_unwanted()) return reason;
  if (Reason reason = product_unsupported(facts)) return reason;
  if (facts.inputs[0].layout.sizes.empty()) return {};
  return second_result_unsupported(matmul_problem(product_facts(facts)), facts.outputs[0].dtype);
}

KernelDef kernel_of(std::string_view op, std::string_view name) {
  return with_product<Prepared>({
      .op = op,
      .name = name,
      .dtypes = {DType::Float16, DType::BFloat16, DType::Float32},
      .run = weight_bias_grad,
      .unsupported = weight_bias_grad_unsupported,
      .layout = LayoutRule::Matrix,
      .input_rules = {LayoutRule::Contiguous},  // as the sum among the parts wants it
  });
}

const KernelRegistrar kPlain(kernel_of("WeightBiasGrad", "weight_bias_grad_cublaslt"));
const KernelRegistrar kTransposed(kernel_of("WeightBiasGradTransposed",
                                            "weight_bias_grad_transposed_cublaslt"));

}  // namespace
}  // namespace ortmodule::cublas
