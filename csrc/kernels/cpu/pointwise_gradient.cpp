// Gradients of activation functions of the CPU's pointwise group.
#include "kernels/pointwise_gradient.h"

#include "kernels/cpu/pointwise_op.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

using namespace formulas;

constexpr MicroOp kOps[] = {ORTM_GRADIENT_OPS(ORTM_MICRO_OP)};

}  // namespace

std::span<const MicroOp> gradient_ops() { return kOps; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
