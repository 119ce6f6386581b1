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

// The functions of float are templates over F, which is float or, on the CPU, a vector of floats
// (kernels/cpu/float_vec.h). They choose with select(), never with a branch.
ORTM_HD float select(bool condition, float a, float b) { return condition ? a : b; }
ORTM_HD double select(bool condition, double a, double b) { return condition ? a : b; }
ORTM_HD float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__CUDA_ARCH__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
ORTM_HD float magnitude_of(float x) { return float_of(bits_of(x) & 0x7fffffffu); }
ORTM_HD uint32_t halved(uint32_t x) { return static_cast<uint32_t>(static_cast<int32_t>(x) >> 1); }

/// exp: x = n ln2 + r, |r| <= ln2/2, a polynomial of degree 6 in r (Cephes' coefficients). Results
/// below the least normal number are 0: masked softmax rows are full of them, and processors take a
/// hundred cycles over each.
template <class F>
ORTM_HD F exp_of(F x0) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kLeast = -87.3365f;
  F x = select(x0 > F(89.0f), F(89.0f), x0);  // comparisons with NaN are false: NaN passes
  x = select(x < F(kLeast), F(kLeast), x);
  const F shifted = multiply_add(x, F(1.44269504088896341f), F(kMagic));
  const F n = shifted - F(kMagic);
  const F r = multiply_add(n, F(2.12194440e-4f), multiply_add(n, F(-0.693359375f), x));
  F p = F(1.9875691500e-4f);
  p = multiply_add(p, r, F(1.3981999507e-3f));
  p = multiply_add(p, r, F(8.3334519073e-3f));
  p = multiply_add(p, r, F(4.1665795894e-2f));
  p = multiply_add(p, r, F(1.6666665459e-1f));
  p = multiply_add(p, r, F(5.0000001201e-1f));
  const F y = multiply_add(p, r * r, r) + F(1.0f);
  // Times 2^n in two halves, since 2^n alone may be out of range. For NaN n is arbitrary.
  const auto exponent = bits_of(shifted) - 0x4b400000u;
  const auto half = halved(exponent);
  const F first = float_of((half + 127u) << 23);
  const F second = float_of((exponent - half + 127u) << 23);
  return select(x0 < F(kLeast), F(0.0f), y * first * second);
}
ORTM_HD float fast_exp(float x) { return exp_of(x); }
ORTM_HD double fast_exp(double x) { return std::exp(x); }

template <class F>
ORTM_HD F with_sign_of(F magnitude, F x) {
  return float_of((bits_of(magnitude) & 0x7fffffffu) | (bits_of(x) & 0x80000000u));
}

/// tanh: odd polynomial below 0.625, else 1 - 2 / (exp(2|x|) + 1).
template <class F>
ORTM_HD F tanh_of(F x) {
  const F z = x * x;
  F p = F(-5.70498872745e-3f);
  p = multiply_add(p, z, F(2.06390887954e-2f));
  p = multiply_add(p, z, F(-5.37397155531e-2f));
  p = multiply_add(p, z, F(1.33314422036e-1f));
  p = multiply_add(p, z, F(-3.33332819422e-1f));
  const F small = multiply_add(p * z, x, x);
  F magnitude = magnitude_of(x);
  magnitude = select(magnitude > F(10.0f), F(10.0f), magnitude);  // where the result is 1
  const F large = F(1.0f) - F(2.0f) / (exp_of(F(2.0f) * magnitude) + F(1.0f));
  return select(magnitude < F(0.625f), small, with_sign_of(large, x));
}
ORTM_HD float fast_tanh(float x) { return tanh_of(x); }
ORTM_HD double fast_tanh(double x) { return std::tanh(x); }

/// erf: x + x P(x^2) below 475/512, else 1 - exp(Q(|x|)) (N. Juffa's minimax coefficients).
template <class F>
ORTM_HD F erf_of(F x) {
  F t = magnitude_of(x);
  t = select(t > F(4.0f), F(4.0f), t);  // where the result is 1; the polynomial turns up again
  const F s = t * t;
  F q = multiply_add(F(-1.72853470e-5f), t, F(3.83197126e-4f));
  const F u = multiply_add(F(-3.88396438e-3f), t, F(2.42546219e-2f));
  q = multiply_add(q, s, u);
  q = multiply_add(q, t, F(-1.06777877e-1f));
  q = multiply_add(q, t, F(-6.34846687e-1f));
  q = multiply_add(q, t, F(-1.28717512e-1f));
  q = multiply_add(q, t, -t);
  const F large = F(1.0f) - exp_of(q);
  F p = F(-5.96761703e-4f);
  p = multiply_add(p, s, F(4.99119423e-3f));
  p = multiply_add(p, s, F(-2.67681349e-2f));
  p = multiply_add(p, s, F(1.12819925e-1f));
  p = multiply_add(p, s, F(-3.76125336e-1f));
  p = multiply_add(p, s, F(1.28379166e-1f));
  const F small = multiply_add(p, x, x);
  return select(t > F(0.927734375f), with_sign_of(large, x), small);
}
ORTM_HD float fast_erf(float x) { return erf_of(x); }
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
