// Arithmetic, selection and bit operations of the CPU's pointwise group.
#include "kernels/pointwise_arithmetic.h"

#include "kernels/cpu/pointwise_op.h"
#include "kernels/pointwise_unsigned.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

using namespace formulas;

constexpr MicroOp kOps[] = {ORTM_ARITHMETIC_OPS(ORTM_MICRO_OP) ORTM_UNSIGNED_OPS(ORTM_MICRO_OP)};

}  // namespace

std::span<const MicroOp> arithmetic_ops() { return kOps; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
