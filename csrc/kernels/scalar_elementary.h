// Logarithms, expm1, sine, cosine, their inverses and power of single elements, for CPU and CUDA
// alike and in the manner of scalar_math.h: branch-free over float or a vector of floats, double by
// the standard library. Within 2 ulp over all floats, denormal ones included. Polynomials whose
// origin is not named are minimax ones (Remez) of relative error, made for these intervals.
#pragma once

#include "kernels/scalar_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

inline constexpr float kInfinityValue = __builtin_inff();
inline constexpr float kNaNValue = __builtin_nanf("");

ORTM_HD float signed_number(uint32_t bits) {
  return static_cast<float>(static_cast<int32_t>(bits));
}
ORTM_HD double magnitude_of(double x) { return std::fabs(x); }
ORTM_HD double multiply_add(double a, double b, double c) {
#if defined(__FMA__) || defined(__CUDA_ARCH__) || defined(ORTM_CUDA_EMULATION)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

// --- logarithms ----------------------------------------------------------------------------------
/// The exponent k of x = 2^k m with m in [sqrt(1/2), sqrt(2)), for a normal x, shifted to where
/// floats have theirs: the bits of x less these are those of m.
template <class Bits>
ORTM_HD Bits exponent_bits(Bits x) {
  return (x - 0x3f3504f3u) & 0xff800000u;
}

/// k ln2 + log(1 + m) for sqrt(1/2) <= 1 + m < sqrt(2).
template <class F>
ORTM_HD F log_of_parts(F k, F m) {
  F p = F(-7.63476789e-2f);
  p = multiply_add(p, m, F(1.276170164e-1f));
  p = multiply_add(p, m, F(-1.316013336e-1f));
  p = multiply_add(p, m, F(1.420173496e-1f));
  p = multiply_add(p, m, F(-1.662335992e-1f));
  p = multiply_add(p, m, F(2.000122815e-1f));
  p = multiply_add(p, m, F(-2.500081956e-1f));
  p = multiply_add(p, m, F(3.333333135e-1f));
  p = multiply_add(p, m, F(-0.5f));
  // ln2 in two parts, of which the first has few enough bits that its multiples are exact.
  const F small = multiply_add(k, F(-2.12194440e-4f), multiply_add(p * m, m, m));
  return multiply_add(k, F(0.693359375f), small);
}

/// x = 2^exponent mantissa, with the mantissa in [sqrt(1/2), sqrt(2)), for finite x > 0.
template <class F>
struct FloatParts {
  F mantissa, exponent;
};
template <class F>
ORTM_HD FloatParts<F> float_parts(F x) {
  const auto is_denormal = x < F(0x1p-126f);
  const auto bits = bits_of(select(is_denormal, x * F(0x1p23f), x));
  const auto k = exponent_bits(bits);
  return {float_of(bits - k),
          multiply_add(signed_number(k), F(0x1p-23f), select(is_denormal, F(-23.0f), F(0.0f)))};
}

template <class F>
ORTM_HD F log_of(F x) {
  const auto [m, k] = float_parts(x);
  const F y = select(x < F(kInfinityValue), log_of_parts(k, m - F(1.0f)), x);
  return select(x <= F(0.0f), select(x < F(0.0f), F(kNaNValue), F(-kInfinityValue)), y);
}
ORTM_HD float fast_log(float x) { return log_of(x); }
ORTM_HD double fast_log(double x) { return std::log(x); }

/// log(1 + x): of the rounded 1 + x only the exponent is taken, m comes from x itself.
template <class F>
ORTM_HD F log1p_of(F x) {
  const auto k = exponent_bits(bits_of(x + F(1.0f)));
  const F scale = float_of(bits_of(F(4.0f)) - k);  // 2^(2 - k), since 2^-128 is denormal
  const F m = float_of(bits_of(x) - k) + multiply_add(scale, F(0.25f), F(-1.0f));
  const F y = with_sign_of(log_of_parts(signed_number(k) * F(0x1p-23f), m), x);
  const F above = select(x < F(kInfinityValue), y, x);
  return select(x <= F(-1.0f), select(x < F(-1.0f), F(kNaNValue), F(-kInfinityValue)), above);
}
ORTM_HD float fast_log1p(float x) { return log1p_of(x); }
ORTM_HD double fast_log1p(double x) { return std::log1p(x); }

/// exp(x) - 1: x = n ln2 + r as for exp, with n = 0 up to 1/2, where the result is near r.
template <class F>
ORTM_HD F expm1_of(F x0) {
  const F x = select(x0 < F(-30.0f), F(-30.0f), at_most(x0, 89.0f));  // -1 and infinity beyond
  const auto is_small = magnitude_of(x) < F(0.5f);
  const F shifted = select(is_small, F(kRoundingMagic),
                           multiply_add(x, F(1.44269504088896341f), F(kRoundingMagic)));
  const F n = shifted - F(kRoundingMagic);
  const F r = multiply_add(n, F(2.12194440e-4f), multiply_add(n, F(-0.693359375f), x));
  F p = F(1.980851812e-4f);
  p = multiply_add(p, r, F(1.398129156e-3f));
  p = multiply_add(p, r, F(8.333699778e-3f));
  p = multiply_add(p, r, F(4.16658707e-2f));
  p = multiply_add(p, r, F(1.666666269e-1f));
  p = multiply_add(p, r, F(0.5f));
  p = multiply_add(p * r, r, r);
  const F half_power = power_of_two(shifted, -1);  // n may be 128, for which there is no power
  const F half = multiply_add(half_power, p, half_power - F(0.5f));
  return with_sign_of(select(is_small, p, half + half), x0);
}
ORTM_HD float fast_expm1(float x) { return expm1_of(x); }
ORTM_HD double fast_expm1(double x) { return std::expm1(x); }

// --- sine and cosine -----------------------------------------------------------------------------
/// Up to here multiples of pi/2 are subtracted exactly; larger arguments, infinities and NaN go to
/// the standard library.
inline constexpr float kLargestReduced = 12800.0f;

/// sin(x + turns pi/2) for |x| <= kLargestReduced; turns is 0 or, for the cosine, 1. |x| less
/// n pi/2 is kept in two floats. pi/2 comes in parts of 11 bits, whose multiples by n < 2^13 are
/// exact, with and without fused multiply-add, and the first two of which leave no rounding error.
template <class F>
ORTM_HD F sine_of(F x, uint32_t turns) {
  const F a = magnitude_of(x);
  const F shifted = multiply_add(a, F(0.636619772367581343f), F(kRoundingMagic));
  const F n = shifted - F(kRoundingMagic);
  const F coarse = multiply_add(n, F(-0x1.fbp-12f), multiply_add(n, F(-0x1.92p+0f), a));
  const F third = n * F(0x1.51p-22f);
  const F fine = coarse - third;
  const F rest =
      ((coarse - fine) - third) - multiply_add(n, F(0x1.0bp-34f), n * F(0x1.184698p-44f));
  const F r = fine + rest;
  const F low = (fine - r) + rest;
  const F z = r * r;
  F s = F(-1.951495797e-4f);
  s = multiply_add(s, z, F(8.332158439e-3f));
  s = multiply_add(s, z, F(-1.666665524e-1f));
  const F sine = r + multiply_add(s * z, r, low);
  F c = F(2.443278572e-5f);
  c = multiply_add(c, z, F(-1.388731296e-3f));
  c = multiply_add(c, z, F(4.166664556e-2f));
  c = multiply_add(c, z, F(-0.5f));
  const F cosine = F(1.0f) + multiply_add(c, z, -r * low);
  const auto quadrant = bits_of(shifted) + turns;
  const auto is_odd = float_of((quadrant & 1u) << 30) > F(0.0f);
  const F magnitude = select(is_odd, cosine, sine);
  const auto sign = ((quadrant & 2u) << 30) ^ (bits_of(x) & (turns ? 0u : 0x80000000u));
  return float_of(bits_of(magnitude) ^ sign);
}
ORTM_HD float fast_sin(float x) {
  return magnitude_of(x) <= kLargestReduced ? sine_of(x, 0) : std::sin(x);
}
ORTM_HD double fast_sin(double x) { return std::sin(x); }
ORTM_HD float fast_cos(float x) {
  return magnitude_of(x) <= kLargestReduced ? sine_of(x, 1) : std::cos(x);
}
ORTM_HD double fast_cos(double x) { return std::cos(x); }

// --- inverse trigonometric functions -------------------------------------------------------------
ORTM_HD float square_root(float x) { return std::sqrt(x); }

/// Of |x| up to tan(pi/8); beyond it of (|x| - 1) / (|x| + 1) plus pi/4, and beyond tan(3 pi/8) of
/// -1 / |x| plus pi/2.
template <class F>
ORTM_HD F atan_of(F x) {
  const F a = magnitude_of(x);
  const auto is_large = a > F(2.41421356237f), is_medium = a > F(0.41421356237f);
  const F t = select(is_large, F(-1.0f), select(is_medium, a - F(1.0f), a)) /
              select(is_large, a, select(is_medium, a + F(1.0f), F(1.0f)));
  const F high = select(is_large, F(1.57079637f), select(is_medium, F(0.785398185f), F(0.0f)));
  const F low =
      select(is_large, F(-4.37113883e-8f), select(is_medium, F(-2.18556941e-8f), F(0.0f)));
  const F z = t * t;
  F p = F(-6.077990706e-2f);
  p = multiply_add(p, z, F(1.059372697e-1f));
  p = multiply_add(p, z, F(-1.424352224e-1f));
  p = multiply_add(p, z, F(1.999847096e-1f));
  p = multiply_add(p, z, F(-3.333331518e-1f));
  return with_sign_of(high + (t + multiply_add(z * t, p, low)), x);
}
ORTM_HD float fast_atan(float x) { return atan_of(x); }
ORTM_HD double fast_atan(double x) { return std::atan(x); }

/// asin of |x| up to 0.6, else of sqrt((1 - |x|) / 2), which is pi/4 - asin(|x|) / 2.
template <class F>
ORTM_HD F short_asin(F a) {
  const auto is_large = a > F(0.6f);
  const F z = select(is_large, F(0.5f) - F(0.5f) * a, a * a);
  const F s = select(is_large, square_root(z), a);
  F p = F(5.601541742e-2f);
  p = multiply_add(p, z, F(-1.112836439e-3f));
  p = multiply_add(p, z, F(3.668565069e-2f));
  p = multiply_add(p, z, F(4.382173138e-2f));
  p = multiply_add(p, z, F(7.504821625e-2f));
  p = multiply_add(p, z, F(1.666657335e-1f));
  return multiply_add(p * z, s, s);
}
template <class F>
ORTM_HD F asin_of(F x) {
  const F a = magnitude_of(x), s = short_asin(a);
  const F large = F(1.57079637f) - ((s + s) + F(4.37113883e-8f));
  return with_sign_of(select(a > F(0.6f), large, s), x);
}
ORTM_HD float fast_asin(float x) { return asin_of(x); }
ORTM_HD double fast_asin(double x) { return std::asin(x); }

template <class F>
ORTM_HD F acos_of(F x) {
  const F a = magnitude_of(x), s = short_asin(a), twice = s + s;
  const F small = F(1.57079637f) - (with_sign_of(s, x) + F(4.37113883e-8f));
  const F negative = F(3.14159274f) - (twice + F(8.74227766e-8f));
  return select(a > F(0.6f), select(x < F(0.0f), negative, twice), small);
}
ORTM_HD float fast_acos(float x) { return acos_of(x); }
ORTM_HD double fast_acos(double x) { return std::acos(x); }

// --- power ---------------------------------------------------------------------------------------
/// 2^n from a number rounded by adding 1.5 * 2^52, for |n| <= 200; arbitrary for NaN.
ORTM_HD double power_of_two_in_double(double shifted) {
  uint64_t bits;
  memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits << 52) + (uint64_t{1023} << 52);
  double power;
  memcpy(&power, &bits, sizeof(power));
  return power;
}

/// The number of [-limit, limit] next to x; NaN passes.
ORTM_HD double within(double x, double limit) {
  const double below = x > limit ? limit : x;
  return below < -limit ? -limit : below;
}

/// (2^k m)^y for m as in FloatParts, where k may be infinite. D is double or a vector of doubles:
/// y multiplies the error of the logarithm, which needs more bits than a float has.
template <class D>
ORTM_HD D power_of_parts(D m, D k, D y) {
  const D s = (m - D(1)) / (m + D(1)), z = s * s;
  D p = D(0.34072870851136028);
  p = multiply_add(p, z, D(0.41167278057834178));
  p = multiply_add(p, z, D(0.57708358429097528));
  p = multiply_add(p, z, D(0.96179667334170471));
  p = multiply_add(p, z, D(2.8853900817900988));
  const D t = within(y * multiply_add(p, s, k), 200.0);  // log2 of the result
  const D shifted = t + D(0x1.8p52);
  const D r = t - (shifted - D(0x1.8p52));
  D q = D(0.00015347383550041375);
  q = multiply_add(q, r, D(0.0013399983261368764));
  q = multiply_add(q, r, D(0.009618484397553478));
  q = multiply_add(q, r, D(0.055503286479437003));
  q = multiply_add(q, r, D(0.24022646920970572));
  q = multiply_add(q, r, D(0.6931472057968785));
  q = multiply_add(q, r, D(1.0000000005516139));
  return q * power_of_two_in_double(shifted);
}

ORTM_HD float power_through_double(float m, float k, float y) {
  return static_cast<float>(power_of_parts<double>(m, k, y));
}

/// x^y, with C's results for zeros, infinities, NaN and negative x.
template <class F>
ORTM_HD F power_of(F x, F y) {
  const F a = magnitude_of(x), b = magnitude_of(y);
  const auto [m, finite_k] = float_parts(a);
  const F k = select(a < F(kInfinityValue), finite_k, a);  // infinities and NaN
  // Infinite exponents would give NaN of 1.
  const F limited = select(b > F(1e30f), with_sign_of(F(1e30f), y), y);
  F result = power_through_double(m, select(a <= F(0.0f), F(-kInfinityValue), k), limited);
  // 2^23 + b has no bits for a fraction, and its last one says whether it is odd.
  const F rounded = b + F(0x1p23f);
  const F whole = select(b < F(0x1p23f), rounded - F(0x1p23f), b);
  const F parity = select(b < F(0x1p23f), rounded, select(b < F(0x1p24f), b, F(0.0f)));
  const auto sign = bits_of(x) & (bits_of(parity) << 31);
  const F of_negative = select(a < F(kInfinityValue), F(kNaNValue), result);
  const F of_fraction = select(x < F(0.0f), of_negative, result);
  result = float_of(bits_of(result) ^ sign);
  result = select(whole < b, of_fraction, select(whole > b, of_fraction, result));
  return select(x == F(1.0f), F(1.0f), select(b <= F(0.0f), F(1.0f), result));
}
ORTM_HD float fast_pow(float x, float y) { return power_of(x, y); }
ORTM_HD double fast_pow(double x, double y) { return std::pow(x, y); }

}  // namespace ORTM_ISA
}  // namespace ortmodule
