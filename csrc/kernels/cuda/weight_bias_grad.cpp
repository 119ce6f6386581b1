// WeightBiasGrad as its two parts, a product and a sum of rows: what cuBLASLt has no algorithm for.
// dy is read twice.
#include <algorithm>

#include "kernels/step_part.h"

namespace ortmodule::cuda {
namespace {

struct Parts {
  StepPart product, sum;

  explicit Parts(const StepFacts& facts)
      : product("FusedMatMul", Device::CUDA, product_facts(facts)),
        sum("ReduceSum", Device::CUDA,
            facts_of_node("ReduceSum", {{"axes", Dims{0}}, {"keepdims", 0}}, {facts.inputs[0]},
                          {facts.outputs[1]})) {}

  static bool transposed(const StepFacts& facts) {
    return facts.node().op == "WeightBiasGradTransposed";
  }

  static StepFacts product_facts(const StepFacts& facts) {
    const OperandFacts &dy = facts.inputs[0], &x = facts.inputs[1];
    std::vector<OperandFacts> operands{dy, x};
    if (transposed(facts)) operands = {x, dy};
    return facts_of_node("FusedMatMul", {{"alpha", 1.0}, {"transA", 1}, {"transB", 0}},
                         std::move(operands), {facts.outputs[0]});
  }
};

void weight_bias_grad(const KernelArgs& args) {
  const auto& parts = *static_cast<const Parts*>(args.prepared);
  const TensorView &dy = args.in[0], &x = args.in[1];
  const bool transposed = Parts::transposed(args.facts);
  const TensorView operands[] = {transposed ? x : dy, transposed ? dy : x};
  parts.product.run(operands, args.out.first(1), args.workspace, args.context);
  parts.sum.run(args.in.first(1), args.out.subspan(1, 1), args.workspace, args.context);
}

KernelDef parts_of(std::string_view op, std::string_view name) {
  return {
      .op = op,
      .name = name,
      .device = Device::CUDA,
      .dtypes = {DType::Float16, DType::BFloat16, DType::Float32},
      .run = weight_bias_grad,
      .workspace_bytes =
          [](const StepFacts& facts) {
            const Parts parts(facts);
            return std::max(parts.product.workspace_bytes(), parts.sum.workspace_bytes());
          },
      .library_bytes = [](const StepFacts& facts) { return Parts(facts).product.library_bytes(); },
      .prepare = [](const StepFacts& facts) -> std::shared_ptr<const void> {
        return std::make_shared<Parts>(facts);
      },
      .layout = LayoutRule::Matrix,
      .input_rules = {LayoutRule::Contiguous},
      .priority = -1};
}

const KernelRegistrar kParts(parts_of("WeightBiasGrad", "weight_bias_grad_parts"));
const KernelRegistrar kTransposedParts(parts_of("WeightBiasGradTransposed",
                                                "weight_bias_grad_transposed_parts"));

}  // namespace
}  // namespace ortmodule::cuda
