// Quantizing with one scale and zero point, in registers.
#pragma once

#include <bit>
#include <concepts>

#include "kernels/cpu/byte_vec.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Whether some lane of the vectors has none of these bits.
inline bool any_without(int32_t bits, std::same_as<IntLanes> auto... lanes) {
#if defined(__AVX512F__)
  const auto without = [&](IntLanes of) {
    return _mm512_testn_epi32_mask(__m512i(of), _mm512_set1_epi32(bits));
  };
  return (without(lanes) | ...) != 0;
#else
  const IntLanes without = (((lanes & bits) == 0) | ...);
#if defined(__AVX2__)
  return _mm256_movemask_epi8(__m256i(without)) != 0;
#else
  int32_t any = 0;
  for (int64_t i = 0; i < FloatVec::kCount; ++i) any |= without[i];
  return any != 0;
#endif
#endif
}

/// rint(x / scale) + zero, within [least, most]; of no number `least`.
class Quantizer {
 public:
  Quantizer() = default;
  /// `least` <= `zero` <= `most`, at most 255 apart.
  Quantizer(float scale, int32_t zero, int32_t least, int32_t most)
      : zero_(zero),
        offset_(kMiddle - kFixedBits + zero * kWhole),
        scale_(scale),
        low_(static_cast<float>(least - zero)),
        high_(static_cast<float>(most - zero)) {
    divides_ = !takes(scale);
    reciprocal_ = divides_ ? 0.0f : 1.0f / scale;
  }

  /// Whether a product with the reciprocal is exact enough: it is far from the least and largest
  /// numbers.
  static bool takes(float scale) { return scale > 0x1p-100f && scale < 0x1p100f; }

  /// Whether fixed() may be used.
  bool is_usual() const { return !divides_; }

  /// In fixed point: what is added to a number up to 1024 leaves the last 12 bits for its fraction,
  /// and half of a whole is added to that. The product with the reciprocal is as good as the
  /// quotient where it does not lie in the middle of two integers: both differ by 3 x 512 x 2^-24
  /// at most. So whole_of() is the result, but where any number is in_doubt().
  IntLanes fixed(FloatVec x) const {
    const FloatVec steps = within(x * FloatVec(reciprocal_)) + FloatVec(kFixed);
    return reinterpret_cast<IntLanes>(steps.v) + offset_;
  }
  static IntLanes whole_of(IntLanes fixed) { return fixed >> kFractionBits; }
  /// Whether some number of the vectors is in the middle of two integers.
  static bool in_doubt(std::same_as<IntLanes> auto... fixed) {
    return any_without(kWhole - 1, fixed...);
  }

  IntLanes operator()(FloatVec x) const {
    const IntLanes lanes = fixed(x);
    if (in_doubt(lanes) || divides_) [[unlikely]]
      return divided(x);
    return whole_of(lanes);
  }

 private:
  static constexpr int kFractionBits = 12;
  static constexpr int32_t kWhole = 1 << kFractionBits, kMiddle = kWhole / 2;
  static constexpr float kFixed = 3072.0f;
  static constexpr int32_t kFixedBits = std::bit_cast<int32_t>(kFixed);

  FloatVec within(FloatVec x) const { return smaller(larger(x, FloatVec(low_)), FloatVec(high_)); }

  IntLanes divided(FloatVec x) const {
    FloatVec place = x / FloatVec(scale_);
#if defined(__AVX2__)
    return nearest_integers(within(place)) + zero_;
#else
    for (int64_t i = 0; i < FloatVec::kCount; ++i) place.v[i] = __builtin_rintf(place.v[i]);
    return __builtin_convertvector(within(place).v, IntLanes) + zero_;
#endif
  }

  int32_t zero_ = 0, offset_ = 0;
  float scale_ = 1.0f, reciprocal_ = 1.0f, low_ = 0.0f, high_ = 255.0f;
  bool divides_ = false;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
