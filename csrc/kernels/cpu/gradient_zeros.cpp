// GradientZeros: y = 0 everywhere; the operands are not read. Bytes moved: y once.
#include "kernels/cpu/fill.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

void run_gradient_zeros(const KernelArgs& args) { fill_all(args.context, args.out[0], 0.0); }

REGISTER_CPU_KERNEL({.op = "GradientZeros",
                     .name = "gradient_zeros_cpu",
                     .dtypes = kEveryType,
                     .run = run_gradient_zeros,
                     .layout = LayoutRule::Any});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
