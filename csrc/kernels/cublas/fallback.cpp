#include "kernels/cublas/fallback.h"

namespace ortmodule::cublas {

Fallback::Fallback(const StepFacts& facts, void (*self)(const KernelArgs&)) {
  for (const KernelDef* other : kernels_of(facts.node().op)) {
    const bool fits = other->device == Device::CUDA && other->run != self &&
                      !other->allocates_outputs && other->layout == LayoutRule::Matrix;
    if (!fits || (other->unsupported && other->unsupported(facts))) continue;
    kernel_ = other;
    break;
  }
  if (kernel_ && kernel_->prepare) prepared_ = kernel_->prepare(facts);
}

size_t Fallback::workspace_bytes(const StepFacts& facts) const {
  return kernel_ && kernel_->workspace_bytes ? kernel_->workspace_bytes(facts) : 0;
}

void Fallback::run(const KernelArgs& args) const {
  ORTM_CHECK(kernel_, "[matmul] cuBLASLt must compute the product, but it refused ",
             args.facts.node().op, " of ", name_of(args.facts.outputs[0].dtype));
  kernel_->run({.facts = args.facts,
                .in = args.in,
                .out = args.out,
                .workspace = args.workspace,
                .prepared = prepared_.get(),
                .context = args.context});
}

}  // namespace ortmodule::cublas
