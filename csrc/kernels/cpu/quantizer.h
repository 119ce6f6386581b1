// Quantizing with one scale and zero point, in registers.
#pragma once

#include <bit>

#include "kernels/cpu/float_vec.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// rint(x / scale), within the bounds of bytes less the zero point; of no number the lower bound.
class Quantizer {
 public:
  Quantizer() = default;
  /// `least`, `most`: of the bytes.
  Quantizer(float scale, int32_t zero, int32_t least, int32_t most)
      : scale_(scale),
        low_(static_cast<float>(least - zero)),
        high_(static_cast<float>(most - zero)) {
    divides_ = !takes(scale);
    reciprocal_ = divides_ ? 0.0f : 1.0f / scale;
  }

  /// Whether a product with the reciprocal is exact enough: it is far from the least and largest
  /// numbers.
  static bool takes(float scale) { return scale > 0x1p-100f && scale < 0x1p100f; }

  /// In fixed point: what is added to a number up to 1024 leaves the last 12 bits for its fraction.
  /// The product with the reciprocal is as good as the quotient where it does not lie in the middle
  /// of two integers: both differ by 3 x 512 x 2^-24 at most. Vectors with such numbers are
  /// divided.
  IntLanes steps(FloatVec x) const {
    const FloatVec fixed = within(x * FloatVec(reciprocal_)) + FloatVec(kFixed);
    const auto bits = reinterpret_cast<IntLanes>(fixed.v);
    const IntLanes middle = (bits & kFraction) == kMiddle;
    if (any(middle) || divides_) [[unlikely]]
      return divided(x);
    return (bits + (kMiddle - kFixedBits)) >> 12;
  }

 private:
  static constexpr float kFixed = 3072.0f;
  static constexpr int32_t kFixedBits = std::bit_cast<int32_t>(kFixed);
  static constexpr int32_t kFraction = (1 << 12) - 1, kMiddle = 1 << 11;

  FloatVec within(FloatVec x) const {
    x = select(x > FloatVec(low_), x, FloatVec(low_));
    return select(x < FloatVec(high_), x, FloatVec(high_));
  }

  IntLanes divided(FloatVec x) const {
    FloatVec place = x / FloatVec(scale_);
    for (int64_t i = 0; i < FloatVec::kCount; ++i) place.v[i] = __builtin_rintf(place.v[i]);
    return __builtin_convertvector(within(place).v, IntLanes);
  }

  static bool any(IntLanes mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask(__m512i(mask), __m512i(mask)) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_epi8(__m256i(mask)) != 0;
#else
    int32_t any = 0;
    for (int64_t i = 0; i < FloatVec::kCount; ++i) any |= mask[i];
    return any != 0;
#endif
  }

  float scale_ = 1.0f, reciprocal_ = 1.0f, low_ = 0.0f, high_ = 255.0f;
  bool divides_ = false;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
