#include "kernels/cpu/pointwise_quantize.h"

#include <algorithm>

#include "kernels/cpu/quantizer.h"
#include "kernels/pointwise_convert.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

struct Numbers {
  float scale, zero, least, most;
};

Numbers numbers_of(const MicroArgs& m) {
  return {*static_cast<const float*>(m.in[1]), *static_cast<const float*>(m.in[2]),
          static_cast<float>(m.params->number[0]), static_cast<float>(m.params->number[1])};
}

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
  const Numbers by = numbers_of(m);
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

/// The byte of no number is 0.
IntLanes without_nan(IntLanes bytes, FloatVec x) { return bytes & (x == x); }

/// The first `count` lanes, each a byte already.
template <class Byte>
void store_lanes(IntLanes bytes, int64_t count, Byte* out) {
#if defined(__AVX512BW__)
  const __m128i narrow = _mm512_maskz_cvtepi32_epi8(0xffff, __m512i(bytes));
  if (count >= 16) return _mm_storeu_si128(reinterpret_cast<__m128i*>(out), narrow);
#elif defined(__AVX2__)
  const __m256i lanes = __m256i(bytes);
  const __m128i pairs =
      _mm_packs_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  const __m128i narrow =
      std::is_signed_v<Byte> ? _mm_packs_epi16(pairs, pairs) : _mm_packus_epi16(pairs, pairs);
  if (count >= 8) return _mm_storel_epi64(reinterpret_cast<__m128i*>(out), narrow);
#endif
  for (int64_t i = 0; i < std::min(count, FloatVec::kCount); ++i)
    out[i] = static_cast<Byte>(bytes[i]);
}

template <class Byte>
void quantize_floats(const Quantizer& quantizer, const float* x, int64_t count, Byte* out) {
  constexpr int64_t kLanes = FloatVec::kCount, kParts = 4;
  int64_t i = 0;
  for (; i + kParts * kLanes <= count; i += kParts * kLanes) {
    FloatVec real[kParts];
    IntLanes fixed[kParts];
    for (int64_t k = 0; k < kParts; ++k) {
      real[k] = FloatVec::load(x + i + k * kLanes);
      fixed[k] = quantizer.fixed(real[k]);
    }
    const bool doubted = Quantizer::in_doubt(fixed[0], fixed[1], fixed[2], fixed[3]);
    for (int64_t k = 0; k < kParts; ++k) {
      const IntLanes bytes = doubted ? quantizer(real[k]) : Quantizer::whole_of(fixed[k]);
      store_lanes(without_nan(bytes, real[k]), kLanes, out + i + k * kLanes);
    }
  }
  for (; i < count; i += kLanes) {
    const int64_t rest = count - i;
    const FloatVec real = rest < kLanes ? FloatVec::load(x + i, rest) : FloatVec::load(x + i);
    store_lanes(without_nan(quantizer(real), real), rest, out + i);
  }
}

template <class Byte>
void quantize_to(const MicroArgs& m) {
  const auto* x = static_cast<const float*>(m.in[0]);
  const Numbers by = numbers_of(m);
  auto* out = static_cast<Byte*>(m.out);
  if (!is_usual(by)) {
    for (int64_t i = 0; i < m.count; ++i) out[i] = static_cast<Byte>(spelled<false>(x[i], by));
    return;
  }
  const auto zero = static_cast<int32_t>(by.zero), least = static_cast<int32_t>(by.least);
  quantize_floats(Quantizer(by.scale, zero, least, least + 255), x, m.count, out);
}

template <class Byte>
void dequantize(const MicroArgs& m) {
  const auto* x = static_cast<const Byte*>(m.in[0]);
  const float scale = *static_cast<const float*>(m.in[1]),
              zero = *static_cast<const float*>(m.in[2]);
  auto* out = static_cast<float*>(m.out);
  ORTM_SIMD
  for (int64_t i = 0; i < m.count; ++i) out[i] = (static_cast<float>(x[i]) - zero) * scale;
}

}  // namespace

MicroFn quantizing() { return &quantize<false>; }

MicroFn fake_quantizing() { return &quantize<true>; }

MicroFn quantizing_to(DType byte) {
  return byte == DType::Int8 ? &quantize_to<int8_t> : &quantize_to<uint8_t>;
}

MicroFn dequantizing(DType byte) {
  return byte == DType::Int8 ? &dequantize<int8_t> : &dequantize<uint8_t>;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
