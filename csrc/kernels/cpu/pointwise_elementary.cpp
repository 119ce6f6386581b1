// Elementary functions of the CPU's pointwise group.
#include "kernels/pointwise_elementary.h"

#include "kernels/cpu/pointwise_op.h"

namespace ortmodule {
inline namespace ORTM_ISA {

#if defined(__AVX512F__)
// One instruction multiplies by 2^n, whatever n, and rounds once: the bits are those of whole_exp,
// which takes two ways for small and large results.
template <>
void unary_formula<formulas::Exp, float, float>(const MicroArgs& m) {
  const auto f = [](FloatVec x) {
    const auto [power, shifted] = exp_parts(at_most(x, 89.0f));
    const FloatVec n = shifted - FloatVec(kRoundingMagic);
    const __mmask16 above =  // NaN, too
        _mm512_cmp_ps_mask(__m512(x.v), _mm512_set1_ps(-104.0f), _CMP_NLT_UQ);
    return FloatVec(FloatLanes(_mm512_maskz_scalef_ps(above, __m512(power.v), __m512(n.v))));
  };
  map_vectors(f, m.count, static_cast<float*>(m.out), static_cast<const float*>(m.in[0]));
}
#endif

namespace {

using namespace formulas;

constexpr MicroOp kOps[] = {ORTM_ELEMENTARY_OPS(ORTM_MICRO_OP)};

}  // namespace

std::span<const MicroOp> elementary_ops() { return kOps; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
