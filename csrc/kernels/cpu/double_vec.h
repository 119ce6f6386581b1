// A vector of doubles, for what of a formula of floats needs more bits.
#pragma once

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

/// The two halves of a FloatVec as doubles, and back.
struct DoubleHalves {
  DoubleVec half[2];

  explicit DoubleHalves(FloatVec x) {
    HalfFloatLanes lanes[2];
    std::memcpy(lanes, &x.v, sizeof(lanes));
    for (int i = 0; i < 2; ++i) half[i] = __builtin_convertvector(lanes[i], DoubleLanes);
  }
  FloatVec rounded() const {
    HalfFloatLanes lanes[2];
    for (int i = 0; i < 2; ++i) lanes[i] = __builtin_convertvector(half[i].v, HalfFloatLanes);
    FloatVec x;
    std::memcpy(&x.v, lanes, sizeof(lanes));
    return x;
  }
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
