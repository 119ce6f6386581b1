// Formulas of single elements, written once for CPU and CUDA: 16-bit floats, exp, tanh, erf and
// what is built of them. Every float32 function is branch-free, so that loops over it vectorize,
// and uses no fused multiply-add, so that vector bodies and scalar tails agree bit for bit.
// Accuracy in float32: exp and tanh within 2 ulp, erf within 4; double uses the standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__CUDACC__)
#define ORTM_HD __host__ __device__ __forceinline__
#else
#define ORTM_HD inline __attribute__((always_inline))
#endif

// Translation units of kernels/cpu say for which instruction set they are compiled; all others
// share one copy of their own.
#ifndef ORTM_ISA
#define ORTM_ISA portable
#endif

namespace ortmodule {
inline namespace ORTM_ISA {

ORTM_HD uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

ORTM_HD float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

/// Storage of a bfloat16; arithmetic happens in float.
struct BFloat16 {
  uint16_t bits;
};

/// Storage of an IEEE half; arithmetic happens in float.
struct Float16 {
  uint16_t bits;
};

ORTM_HD float to_float(BFloat16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }

ORTM_HD BFloat16 to_bfloat16(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // to nearest even
  return {static_cast<uint16_t>(x != x ? 0x7fc0u : rounded)};
}

ORTM_HD float to_float(Float16 x) {
  constexpr uint32_t kExponent = 0x7c00u << 13;
  const uint32_t shifted = (x.bits & 0x7fffu) << 13;
  const uint32_t exponent = shifted & kExponent;
  const uint32_t normal = shifted + ((127u - 15u) << 23);
  const uint32_t special = normal + ((128u - 16u) << 23);  // infinities and NaN
  const uint32_t denormal = bits_of(float_of(normal + (1u << 23)) - float_of(113u << 23));
  const uint32_t magnitude = exponent == kExponent ? special : exponent == 0 ? denormal : normal;
  return float_of(magnitude | ((x.bits & 0x8000u) << 16));
}

ORTM_HD Float16 to_float16(float x) {
  constexpr uint32_t kDenormalMagic = ((127u - 15u) + (23u - 10u) + 1u) << 23;
  const uint32_t bits = bits_of(x);
  const uint32_t f = bits & 0x7fffffffu;
  const uint32_t special = f > 0x7f800000u ? 0x7e00u : 0x7c00u;
  // Adding a power of two shifts the mantissa into place and rounds it to nearest even.
  const uint32_t denormal = bits_of(float_of(f) + float_of(kDenormalMagic)) - kDenormalMagic;
  const uint32_t normal = (f + ((15u - 127u) << 23) + 0xfffu + ((f >> 13) & 1u)) >> 13;
  const uint32_t magnitude = f >= ((127u + 16u) << 23) ? special
                             : f < (113u << 23)        ? denormal
                                                       : normal;
  return {static_cast<uint16_t>(magnitude | ((bits >> 16) & 0x8000u))};
}

/// 2^n as the product of two representable powers, for -252 <= n <= 254.
ORTM_HD float scale_by_power(float y, int32_t n) {
  const int32_t half = n >> 1;
  const float first = float_of(static_cast<uint32_t>(half + 127) << 23);
  const float second = float_of(static_cast<uint32_t>(n - half + 127) << 23);
  return y * first * second;
}

/// exp: x = n ln2 + r, |r| <= ln2/2, a polynomial of degree 6 in r (Cephes' coefficients).
ORTM_HD float fast_exp(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = x > 89.0f ? 89.0f : x;             // comparisons with NaN are false: NaN passes
  x = x < -104.0f ? -104.0f : x;
  const float shifted = x * 1.44269504088896341f + kMagic;
  const float n = shifted - kMagic;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = (p * (r * r) + r) + 1.0f;
  // Unsigned, because for NaN the bits are arbitrary.
  const uint32_t exponent = bits_of(shifted) - bits_of(kMagic);
  return scale_by_power(y, x != x ? 0 : static_cast<int32_t>(exponent));
}
ORTM_HD double fast_exp(double x) { return std::exp(x); }

ORTM_HD float with_sign_of(float magnitude, float x) {
  return float_of((bits_of(magnitude) & 0x7fffffffu) | (bits_of(x) & 0x80000000u));
}

/// tanh: odd polynomial below 0.625, else 1 - 2 / (exp(2|x|) + 1).
ORTM_HD float fast_tanh(float x) {
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float small = p * z * x + x;
  const float magnitude = std::fabs(x);
  const float large = 1.0f - 2.0f / (fast_exp(2.0f * magnitude) + 1.0f);
  return magnitude < 0.625f ? small : with_sign_of(large, x);
}
ORTM_HD double fast_tanh(double x) { return std::tanh(x); }

/// erf: x + x P(x^2) below 475/512, else 1 - exp(Q(|x|)) (N. Juffa's minimax coefficients).
ORTM_HD float fast_erf(float x) {
  const float t = std::fabs(x);
  const float s = x * x;
  float q = -1.72853470e-5f * t + 3.83197126e-4f;
  const float u = -3.88396438e-3f * t + 2.42546219e-2f;
  q = q * s + u;
  q = q * t - 1.06777877e-1f;
  q = q * t - 6.34846687e-1f;
  q = q * t - 1.28717512e-1f;
  q = q * t - t;
  // Beyond 4 the result is 1; the clamp also keeps the polynomial from turning up again.
  const float large = t > 4.0f ? 1.0f : 1.0f - fast_exp(q);
  float p = -5.96761703e-4f;
  p = p * s + 4.99119423e-3f;
  p = p * s - 2.67681349e-2f;
  p = p * s + 1.12819925e-1f;
  p = p * s - 3.76125336e-1f;
  p = p * s + 1.28379166e-1f;
  const float small = p * x + x;
  return t > 0.927734375f ? with_sign_of(large, x) : small;
}
ORTM_HD double fast_erf(double x) { return std::erf(x); }

template <class T>
ORTM_HD T sigmoid(T x) {
  return T(1) / (T(1) + fast_exp(-x));
}

inline constexpr double kSqrtHalf = 0.70710678118654752440;
inline constexpr double kInvSqrtTwoPi = 0.39894228040143267794;
inline constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
inline constexpr double kGeluCubic = 0.044715;

/// x Phi(x).
template <class T>
ORTM_HD T gelu(T x) {
  return x * T(0.5) * (T(1) + fast_erf(x * T(kSqrtHalf)));
}

template <class T>
ORTM_HD T gelu_grad(T dy, T x) {
  const T cdf = T(0.5) * (T(1) + fast_erf(x * T(kSqrtHalf)));
  const T pdf = fast_exp(x * x * T(-0.5)) * T(kInvSqrtTwoPi);
  return dy * (cdf + x * pdf);
}

/// x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2.
template <class T>
ORTM_HD T gelu_tanh(T x) {
  const T inner = T(kSqrtTwoOverPi) * (x + T(kGeluCubic) * (x * x * x));
  return T(0.5) * x * (T(1) + fast_tanh(inner));
}

template <class T>
ORTM_HD T gelu_tanh_grad(T dy, T x) {
  const T square = x * x;
  const T t = fast_tanh(T(kSqrtTwoOverPi) * (x + T(kGeluCubic) * (square * x)));
  const T inner_grad = T(kSqrtTwoOverPi) * (T(1) + T(3 * kGeluCubic) * square);
  return dy * (T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * inner_grad);
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
