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
#if defined(__FMA__) || defined(__CUDA_ARCH__) || defined(ORTM_CUDA_EMULATION)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
/// The lesser of x and a number; NaN passes.
ORTM_HD float at_most(float x, float limit) { return x > limit ? limit : x; }
ORTM_HD float magnitude_of(float x) { return float_of(bits_of(x) & 0x7fffffffu); }

/// 1.5 * 2^23: adding it to a small number rounds that to an integer n, held in the low bits.
inline constexpr float kRoundingMagic = 12582912.0f;

/// 2^(n + bias) from a number rounded by kRoundingMagic, for -126 <= n + bias <= 127. For NaN it is
/// arbitrary, so a factor of NaN must remain.
template <class F>
ORTM_HD F power_of_two(F shifted, int bias = 0) {
  return float_of((bits_of(shifted) << 23) + (static_cast<uint32_t>(127 + bias) << 23));
}

/// x = n ln2 + r, |r| <= ln2/2: e^r by a polynomial of degree 7 (Cephes' coefficients), and n.
template <class F>
struct ExpParts {
  F power;    // e^r
  F shifted;  // n, rounded by kRoundingMagic
};
template <class F>
ORTM_HD ExpParts<F> exp_parts(F x) {
  const F shifted = multiply_add(x, F(1.44269504088896341f), F(kRoundingMagic));
  const F n = shifted - F(kRoundingMagic);
  const F r = multiply_add(n, F(2.12194440e-4f), multiply_add(n, F(-0.693359375f), x));
  F p = F(1.9875691500e-4f);
  p = multiply_add(p, r, F(1.3981999507e-3f));
  p = multiply_add(p, r, F(8.3334519073e-3f));
  p = multiply_add(p, r, F(4.1665795894e-2f));
  p = multiply_add(p, r, F(1.6666665459e-1f));
  p = multiply_add(p, r, F(5.0000001201e-1f));
  return {multiply_add(p, r * r, r) + F(1.0f), shifted};
}

/// exp for what is added to numbers near 1, in softmax, sigmoid, tanh and erf. Results
/// below 2^-125 are 0: masked softmax rows are full of them, and processors take a hundred cycles
/// over each number below the normal ones.
template <class F>
ORTM_HD F exp_of(F x0) {
  const auto [y, n] = exp_parts(at_most(x0, 89.0f));  // the result is infinite from 88.73 on
  // Twice y times 2^(n - 1), since n may be 128, for which there is no power.
  return select(x0 < F(-86.64f), F(0.0f), (y + y) * power_of_two(n, -1));
}
#if defined(__CUDA_ARCH__)
/// 2^x by the device's instruction, within 2 ulp where the result is a normal number.
ORTM_HD float hardware_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// On a GPU: 2^t for t = x log2(e), and what rounding took from t as a factor.
ORTM_HD float exp_of(float x0) {
  const float x = at_most(x0, 89.0f);
  const float t = x * 1.44269502162933349609f;
  const float lost = multiply_add(x, 1.92596299e-8f, multiply_add(x, 1.44269502162933349609f, -t));
  const float y = hardware_exp2(t) * multiply_add(lost, 0.69314718056f, 1.0f);
  return select(x0 < -86.64f, 0.0f, y);
}
#endif
ORTM_HD float fast_exp(float x) { return exp_of(x); }
ORTM_HD double fast_exp(double x) { return std::exp(x); }

/// exp over all of its range, denormal results included: the user may take the logarithm of it.
template <class F>
ORTM_HD F whole_exp_of(F x0) {
  const auto [y, n] = exp_parts(at_most(x0, 89.0f));
  const F small = y * power_of_two(n, 64) * F(0x1p-64f);
  const F result = select(x0 < F(-80.0f), small, (y + y) * power_of_two(n, -1));
  return select(x0 < F(-104.0f), F(0.0f), result);  // 2^-150 and less
}
ORTM_HD float whole_exp(float x) { return whole_exp_of(x); }
ORTM_HD double whole_exp(double x) { return std::exp(x); }

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
  const F magnitude = at_most(magnitude_of(x), 10.0f);  // where the result is 1
  const F large = F(1.0f) - F(2.0f) / (exp_of(F(2.0f) * magnitude) + F(1.0f));
  return with_sign_of(select(magnitude < F(0.625f), small, large), x);  // also of -0.0
}
ORTM_HD float fast_tanh(float x) { return tanh_of(x); }
ORTM_HD double fast_tanh(double x) { return std::tanh(x); }

/// erf: x + x P(x^2) below 475/512, else 1 - exp(Q(|x|)) (N. Juffa's minimax coefficients).
template <class F>
ORTM_HD F erf_of(F x) {
  const F t = at_most(magnitude_of(x), 4.0f);  // where the result is 1
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

/// 2^x for -126 <= x <= 127 (Cephes' coefficients); NaN passes.
template <class F>
ORTM_HD F exp2_in_range(F x) {
  const F shifted = x + F(kRoundingMagic);
  const F r = x - (shifted - F(kRoundingMagic));
  F p = F(1.535336188e-4f);
  p = multiply_add(p, r, F(1.339887440e-3f));
  p = multiply_add(p, r, F(9.618437357e-3f));
  p = multiply_add(p, r, F(5.550332471e-2f));
  p = multiply_add(p, r, F(2.402264791e-1f));
  p = multiply_add(p, r, F(6.931472028e-1f));
  p = multiply_add(p, r, F(1.0f));
  return p * power_of_two(shifted);
}
#if defined(__CUDA_ARCH__)
ORTM_HD float exp2_in_range(float x) { return hardware_exp2(x); }
#endif

/// The normal distribution function Phi: 2^(a P(a) - 1) at -a = -|x|, with a minimax polynomial of
/// log2 Phi over [0, 6], and 0 or 1 beyond. Within 1.2e-7 absolutely
/// (6e-8 with fused multiply-add) and 5e-6 relatively.
template <class F>
ORTM_HD F normal_cdf_of(F x) {
  const F a = at_most(magnitude_of(x), 6.0f);
  F p = F(-1.789430648e-8f);
  p = multiply_add(p, a, F(5.745112617e-7f));
  p = multiply_add(p, a, F(-7.875173651e-6f));
  p = multiply_add(p, a, F(5.819066428e-5f));
  p = multiply_add(p, a, F(-2.159916621e-4f));
  p = multiply_add(p, a, F(-1.332361280e-4f));
  p = multiply_add(p, a, F(7.109968457e-3f));
  p = multiply_add(p, a, F(-5.254985765e-2f));
  p = multiply_add(p, a, F(-4.591869712e-1f));
  p = multiply_add(p, a, F(-1.151107669f));
  p = multiply_add(p, a, F(-1.0f));
  const F tail = select(a >= F(6.0f), F(0.0f), exp2_in_range(p));
  return select(x > F(0.0f), F(1.0f) - tail, tail);
}
ORTM_HD float normal_cdf(float x) { return normal_cdf_of(x); }
ORTM_HD double normal_cdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }

/// exp(-x^2 / 2) / sqrt(2 pi), the density of the normal distribution.
template <class F>
ORTM_HD F normal_density_of(F x) {
  const F square = x * x;
  const F log2 =
      multiply_add(at_most(square, 160.0f), F(-0.72134752044448f), F(-1.32574806473616f));
  // Below 2^-115 it is 0, also times x, however large.
  return select(square > F(160.0f), F(0.0f), exp2_in_range(log2));
}
ORTM_HD float normal_density(float x) { return normal_density_of(x); }
ORTM_HD double normal_density(double x) { return std::exp(x * x * -0.5) * 0.39894228040143267794; }

template <class T>
ORTM_HD T sigmoid(T x) {
  return T(1) / (T(1) + fast_exp(-x));
}

inline constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
inline constexpr double kGeluCubic = 0.044715;

/// x Phi(x).
template <class T>
ORTM_HD T gelu(T x) {
  return x * normal_cdf(x);
}

template <class T>
ORTM_HD T gelu_grad(T dy, T x) {
  return dy * (normal_cdf(x) + x * normal_density(x));
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
