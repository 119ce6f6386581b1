#include "kernels/cpu/pointwise_quantize.h"

#include "kernels/cpu/quantizer.h"
#include "kernels/pointwise_convert.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

struct Numbers {
  float scale, zero, least, most;
};

// Any scale and zero point, as the nodes would.
template <bool kDequantizes>
float spelled(float x, const Numbers& by) {
  float place = __builtin_rintf(x / by.scale) + by.zero;
  place = place < by.least ? by.least : place;
  place = place > by.most ? by.most : place;
  const float byte = by.least < 0 ? formulas::ThroughByte<int8_t>()(place)
                                  : formulas::ThroughByte<uint8_t>()(place);
  return kDequantizes ? (byte - by.zero) * by.scale : byte;
}

bool is_usual(const Numbers& by) {
  const bool is_byte = by.zero >= by.least && by.zero <= by.most;
  return Quantizer::takes(by.scale) && is_byte && by.zero == __builtin_truncf(by.zero);
}

template <bool kDequantizes>
void quantize(const MicroArgs& m) {
  const auto* x = static_cast<const float*>(m.in[0]);
  const Numbers by{*static_cast<const float*>(m.in[1]), *static_cast<const float*>(m.in[2]),
                   static_cast<float>(m.params->number[0]),
                   static_cast<float>(m.params->number[1])};
  auto* out = static_cast<float*>(m.out);
  if (!is_usual(by)) {
    for (int64_t i = 0; i < m.count; ++i) out[i] = spelled<kDequantizes>(x[i], by);
    return;
  }
  // The zero point is added later: to numbers that are not dequantized.
  const Quantizer steps_of(by.scale, 0, static_cast<int32_t>(by.least - by.zero),
                           static_cast<int32_t>(by.most - by.zero));
  const FloatVec scale(by.scale), zero(by.zero), of_none(0.0f - by.zero);
  const auto of = [=](FloatVec real) {
    FloatVec steps = __builtin_convertvector(steps_of(real), FloatLanes);
    steps = select(real == real, steps, of_none);  // the byte of no number is 0
    return kDequantizes ? steps * scale : steps + zero;
  };
  constexpr int64_t kLanes = FloatVec::kCount;
  int64_t i = 0;
  for (; i + kLanes <= m.count; i += kLanes) of(FloatVec::load(x + i)).store(out + i);
  if (i < m.count) of(FloatVec::load(x + i, m.count - i)).store(out + i, m.count - i);
}

}  // namespace

MicroFn quantizing() { return &quantize<false>; }

MicroFn fake_quantizing() { return &quantize<true>; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
