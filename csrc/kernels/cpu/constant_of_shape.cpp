// ConstantOfShape: y = value everywhere. Bytes moved: y once.
#include "kernels/cpu/fill.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

void run_constant_of_shape(const KernelArgs& args) {
  fill_all(args.context, args.out[0], args.facts.node().attrs.number("value", 0.0));
}

Reason constant_unsupported(const StepFacts& facts) {
  if (is_complex(facts.outputs[0].dtype) && facts.node().attrs.number("value", 0.0) != 0)
    return "a complex constant is not zero";
  return {};
}

REGISTER_CPU_KERNEL({.op = "ConstantOfShape",
                     .name = "constant_of_shape_cpu",
                     .dtypes = kMovedTypes,
                     .run = run_constant_of_shape,
                     .unsupported = constant_unsupported});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
