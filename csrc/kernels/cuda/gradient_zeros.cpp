// GradientZeros: y = 0 everywhere; the operands are not read. Bytes moved: y once.
#include "kernels/cuda/strided_copy.h"

namespace ortmodule::cuda {
namespace {

REGISTER_KERNEL({.op = "GradientZeros",
                 .name = "gradient_zeros_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = [](const KernelArgs& args) { fill(args.out[0], 0.0, args.context); },
                 .layout = LayoutRule::Any});

}  // namespace
}  // namespace ortmodule::cuda
