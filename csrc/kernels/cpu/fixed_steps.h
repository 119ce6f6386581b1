// Functions of two bytes as bytes, in fixed point: one conversion and a multiply-add for each
// operand in place of the subtractions, products and comparisons that define them.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cpu/byte_vec.h"
#include "kernels/cpu/quantizer.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// What a byte stands for: scale * (byte - zero).
struct ByteScale {
  float scale = 1.0f;
  int32_t zero = 0;
};

/// Steps of the result, of which the last bits are a fraction. They differ from the numbers that
/// are rounded one by one by 8 x 2^-24 of the largest of them at most, which is 2 of the fraction's
/// units; a third one is for their own rounding. So the integer is the right one but where the
/// fraction is within 4 units of the middle of two, which is where its other bits are 0.
class FixedSteps {
 public:
  /// For numbers of up to `largest` steps of the result.
  FixedSteps(double largest, int32_t zero) : zero_(zero) {
    const double room = std::log2(kLargest / (largest + kBytes));
    bits_ = static_cast<int>(std::min(std::floor(room), 16.0));
    usual_ = room >= 8;  // also false of NaN
    if (!usual_) bits_ = 8;
  }
  bool is_usual() const { return usual_; }
  float unit() const { return static_cast<float>(1 << bits_); }
  /// What is added to a number of steps: the zero point, a half, and the middle of the doubt.
  double offset() const { return (zero_ + 0.5) * (1 << bits_) + kDoubt / 2; }

  IntLanes whole_of(IntLanes fixed) const { return fixed >> bits_; }
  /// Whether some number of the vectors may be another integer.
  bool in_doubt(std::same_as<IntLanes> auto... fixed) const {
    return any_without(((1 << bits_) - 1) & ~(kDoubt - 1), fixed...);
  }

 private:
  static constexpr int32_t kDoubt = 8;
  static constexpr double kLargest = 1 << 22, kBytes = 257;

  bool usual_ = false;
  int bits_ = 8;
  int32_t zero_ = 0;
};

struct FixedSum : FixedSteps {
  FloatVec of_a, of_b, added;

  FixedSum(ByteScale a, ByteScale b, ByteScale y)
      : FixedSteps(255.0 * (double{a.scale} + double{b.scale}) / double{y.scale}, y.zero) {
    const auto steps = [&](ByteScale x) {
      return static_cast<float>(double{x.scale} / double{y.scale} * double{unit()});
    };
    const float a_steps = steps(a), b_steps = steps(b);
    of_a = FloatVec(a_steps);
    of_b = FloatVec(b_steps);
    added = FloatVec(offset() - double{a_steps} * a.zero - double{b_steps} * b.zero);
  }
  FloatVec operator()(FloatVec a, FloatVec b) const {
    return multiply_add(b, of_b, multiply_add(a, of_a, added));
  }
};

struct FixedProduct : FixedSteps {
  FloatVec a_zero, b_zero, of_product, added;

  FixedProduct(ByteScale a, ByteScale b, ByteScale y)
      : FixedSteps(255.0 * 255.0 * double{a.scale} * double{b.scale} / double{y.scale}, y.zero),
        a_zero(a.zero),
        b_zero(b.zero),
        of_product(double{a.scale} * double{b.scale} / double{y.scale} * double{unit()}),
        added(offset()) {}
  FloatVec operator()(FloatVec a, FloatVec b) const {
    return multiply_add((a - a_zero) * (b - b_zero), of_product, added);
  }
};

#if defined(__AVX2__)
/// Four vectors of results, none below `least`; nothing, and false, where one is in doubt.
template <class A, class B, class Y, class Steps>
bool write_fixed(const Steps& steps, const A* a, const B* b, Y least, Y* y) {
  constexpr int64_t kLanes = FloatVec::kCount;
  const auto fixed = [&](int64_t part) {
    const FloatVec x =
        steps(load_wide<FloatVec>(a + part * kLanes), load_wide<FloatVec>(b + part * kLanes));
    return nearest_integers(x);
  };
  const IntLanes first = fixed(0), second = fixed(1), third = fixed(2), fourth = fixed(3);
  if (steps.in_doubt(first, second, third, fourth)) [[unlikely]]
    return false;
  store_bytes(steps.whole_of(first), steps.whole_of(second), steps.whole_of(third),
              steps.whole_of(fourth), least, y);
  return true;
}
#endif

}  // namespace ORTM_ISA
}  // namespace ortmodule
