// Pad: y = `value` with x at `pads` from its beginning; `pads` lists all beginnings, then all ends.
// Bytes moved: x once, y once; twice where rows are short.
#include "kernels/cpu/surrounded_copy.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

std::shared_ptr<const void> prepare_pad(const StepFacts& facts) {
  return std::make_shared<const SurroundedCopy>(facts, pad_geometry(facts));
}

void run_pad(const KernelArgs& args) {
  const double value = args.facts.node().attrs.number("value", 0.0);
  static_cast<const SurroundedCopy*>(args.prepared)->run(args, value);
}

REGISTER_CPU_KERNEL({.op = "Pad",
                     .name = "pad_cpu",
                     .dtypes = kMovedTypes,
                     .run = run_pad,
                     .unsupported = pad_unsupported,
                     .prepare = prepare_pad,
                     .input_rules = {LayoutRule::Any}});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
