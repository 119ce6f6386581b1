// SliceGrad: dx = zeros of `shape` with dy at start, start + step, ... along `axis`.
// Bytes moved: dy once, dx once; twice where rows are short.
#include "kernels/cpu/surrounded_copy.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

std::shared_ptr<const void> prepare_slice_grad(const StepFacts& facts) {
  return std::make_shared<const SurroundedCopy>(facts, slice_grad_geometry(facts));
}

void run_slice_grad(const KernelArgs& args) {
  static_cast<const SurroundedCopy*>(args.prepared)->run(args, 0.0);
}

REGISTER_CPU_KERNEL({.op = "SliceGrad",
                     .name = "slice_grad_cpu",
                     .dtypes = kEveryType,
                     .run = run_slice_grad,
                     .unsupported = copy_unsupported,
                     .prepare = prepare_slice_grad,
                     .input_rules = {LayoutRule::Any}});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
