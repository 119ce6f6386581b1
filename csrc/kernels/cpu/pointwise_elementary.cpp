// Elementary functions of the CPU's pointwise group.
#include "kernels/pointwise_elementary.h"

#include "kernels/cpu/pointwise_op.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

using namespace formulas;

constexpr MicroOp kOps[] = {ORTM_ELEMENTARY_OPS(ORTM_MICRO_OP)};

}  // namespace

std::span<const MicroOp> elementary_ops() { return kOps; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
