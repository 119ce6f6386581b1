// Arithmetic, selection and bit operations of the CPU's pointwise group.
#include "kernels/pointwise_arithmetic.h"

#include "kernels/cpu/pointwise_op.h"
#include "kernels/pointwise_unsigned.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

using namespace formulas;

template <class F, class In, class Out>
void where(const MicroArgs& m) {
  const auto* condition = static_cast<const TileElement<bool>*>(m.in[0]);
  const In* a = static_cast<const In*>(m.in[1]);
  const In* b = static_cast<const In*>(m.in[2]);
  Out* out = static_cast<Out*>(m.out);
  const int64_t count = m.count;
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const In x = a[i], y = b[i];  // both read, so that the choice is a blend and not a branch
    out[i] = F()(element_value<bool>(condition[i]), x, y);
  }
}

constexpr MicroOp kOps[] = {ORTM_ARITHMETIC_OPS(ORTM_MICRO_OP) ORTM_UNSIGNED_OPS(ORTM_MICRO_OP)};

}  // namespace

std::span<const MicroOp> arithmetic_ops() { return kOps; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
