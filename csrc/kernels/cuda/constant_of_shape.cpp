// ConstantOfShape: y = value everywhere. Bytes moved: y once.
#include "kernels/cuda/strided_copy.h"

namespace ortmodule::cuda {
namespace {

void run_constant_of_shape(const KernelArgs& args) {
  fill(args.out[0], args.facts.node().attrs.number("value", 0.0), args.context);
}

Reason constant_unsupported(const StepFacts& facts) {
  if (is_complex(facts.outputs[0].dtype) && facts.node().attrs.number("value", 0.0) != 0)
    return "a complex constant is not zero";
  return {};
}

REGISTER_KERNEL({.op = "ConstantOfShape",
                 .name = "constant_of_shape_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = run_constant_of_shape,
                 .unsupported = constant_unsupported});

}  // namespace
}  // namespace ortmodule::cuda
