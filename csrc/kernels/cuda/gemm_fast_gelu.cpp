// GemmFastGelu as its two parts, a product and a pointwise step: what cuBLASLt has no algorithm
// for. pre is written, and read again.
#include <algorithm>

#include "kernels/step_part.h"

namespace ortmodule::cuda {
namespace {

struct Parts {
  StepPart product, activation;

  explicit Parts(const StepFacts& facts)
      : product("Gemm", Device::CUDA, product_facts(facts)),
        activation("PointwiseGroup", Device::CUDA,
                   facts_of_node("Gelu", {{"approximate", "tanh"}}, {facts.outputs[1]},
                                 {facts.outputs[0]})) {}

  static StepFacts product_facts(const StepFacts& facts) {
    const Attrs attrs = {{"alpha", 1.0},
                         {"beta", 1.0},
                         {"transA", 0},
                         {"transB", facts.node().attrs.integer("transB")}};
    return facts_of_node("Gemm", attrs, facts.inputs, {facts.outputs[1]});
  }
};

void gemm_fast_gelu(const KernelArgs& args) {
  const auto& parts = *static_cast<const Parts*>(args.prepared);
  const auto y = args.out.first(1), pre = args.out.subspan(1, 1);
  parts.product.run(args.in, pre, args.workspace, args.context);
  parts.activation.run(pre, y, nullptr, args.context);
}

REGISTER_KERNEL({.op = "GemmFastGelu",
                 .name = "gemm_fast_gelu_parts",
                 .device = Device::CUDA,
                 .dtypes = {DType::Float16, DType::BFloat16},
                 .run = gemm_fast_gelu,
                 .workspace_bytes =
                     [](const StepFacts& facts) { return Parts(facts).product.workspace_bytes(); },
                 .library_bytes =
                     [](const StepFacts& facts) { return Parts(facts).product.library_bytes(); },
                 .prepare = [](const StepFacts& facts) -> std::shared_ptr<const void> {
                   return std::make_shared<Parts>(facts);
                 },
                 .layout = LayoutRule::Matrix,
                 .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Any},
                 .priority = -1});

}  // namespace
}  // namespace ortmodule::cuda
