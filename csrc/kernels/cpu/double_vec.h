// A vector of doubles, for what of a formula of floats needs more bits.
#pragma once

#include <cmath>

#include "kernels/cpu/float_vec.h"

namespace ortmodule {
inline namespace ORTM_ISA {

typedef double DoubleLanes __attribute__((vector_size(kVectorBytes)));
typedef int64_t LongLanes __attribute__((vector_size(kVectorBytes)));
typedef float HalfFloatLanes __attribute__((vector_size(kVectorBytes / 2)));

struct DoubleVec {
  static constexpr int64_t kCount = kVectorBytes / 8;
  DoubleLanes v;

  DoubleVec() = default;
  DoubleVec(DoubleLanes lanes) : v(lanes) {}  // NOLINT: the same thing
  template <class T>
  requires std::is_arithmetic_v<T>
  explicit DoubleVec(T x) : v(static_cast<double>(x) - DoubleLanes{}) {}

  static DoubleVec load(const double* from) {
    DoubleVec x;
    std::memcpy(&x.v, from, sizeof(x.v));
    return x;
  }
  void store(double* to) const { std::memcpy(to, &v, sizeof(v)); }

  friend DoubleVec operator+(DoubleVec a, DoubleVec b) { return a.v + b.v; }
  friend DoubleVec operator-(DoubleVec a, DoubleVec b) { return a.v - b.v; }
  friend DoubleVec operator*(DoubleVec a, DoubleVec b) { return a.v * b.v; }
  friend DoubleVec operator/(DoubleVec a, DoubleVec b) { return a.v / b.v; }
  friend LongLanes operator<(DoubleVec a, DoubleVec b) { return a.v < b.v; }
  friend LongLanes operator>(DoubleVec a, DoubleVec b) { return a.v > b.v; }
};

inline DoubleVec select(LongLanes mask, DoubleVec a, DoubleVec b) { return mask ? a.v : b.v; }
inline DoubleVec multiply_add(DoubleVec a, DoubleVec b, DoubleVec c) {
#if defined(__AVX512F__)
  return DoubleLanes(_mm512_fmadd_pd(__m512d(a.v), __m512d(b.v), __m512d(c.v)));
#elif defined(__FMA__)
  return DoubleLanes(_mm256_fmadd_pd(__m256d(a.v), __m256d(b.v), __m256d(c.v)));
#else
  return a * b + c;
#endif
}

// By name, since GCC 12 makes of __builtin_convertvector twice as many instructions. (The maskz
// forms take every lane; the plain ones make GCC 12 warn of its own headers.)
inline DoubleVec widened(HalfFloatLanes x) {
#if defined(__AVX512F__)
  return DoubleLanes(_mm512_maskz_cvtps_pd(0xff, __m256(x)));
#elif defined(__AVX2__)
  return DoubleLanes(_mm256_cvtps_pd(__m128(x)));
#else
  return __builtin_convertvector(x, DoubleLanes);
#endif
}
inline HalfFloatLanes narrowed(DoubleVec x) {
#if defined(__AVX512F__)
  return HalfFloatLanes(_mm512_maskz_cvtpd_ps(0xff, __m512d(x.v)));
#elif defined(__AVX2__)
  return HalfFloatLanes(_mm256_cvtpd_ps(__m256d(x.v)));
#else
  return __builtin_convertvector(x.v, HalfFloatLanes);
#endif
}
inline DoubleVec square_root(DoubleVec x) {
#if defined(__AVX512F__)
  return DoubleLanes(_mm512_maskz_sqrt_pd(0xff, __m512d(x.v)));
#elif defined(__AVX2__)
  return DoubleLanes(_mm256_sqrt_pd(__m256d(x.v)));
#else
  for (int i = 0; i < static_cast<int>(kVectorBytes / 8); ++i) x.v[i] = std::sqrt(x.v[i]);
  return x;
#endif
}

/// The two halves of a FloatVec as doubles, and back.
struct DoubleHalves {
  DoubleVec half[2];

  explicit DoubleHalves(FloatVec x) {
    HalfFloatLanes lanes[2];
    std::memcpy(lanes, &x.v, sizeof(lanes));
    for (int i = 0; i < 2; ++i) half[i] = widened(lanes[i]);
  }
  FloatVec rounded() const {
    HalfFloatLanes lanes[2];
    for (int i = 0; i < 2; ++i) lanes[i] = narrowed(half[i]);
    FloatVec x;
    std::memcpy(&x.v, lanes, sizeof(lanes));
    return x;
  }
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
