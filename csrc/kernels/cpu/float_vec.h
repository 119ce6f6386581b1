// A vector of floats of the instruction set's width, for the formulas of scalar_math.h. Compilers
// vectorize loops over simple arithmetic well, but turn the selections of longer formulas into
// branches; explicit vectors do not depend on their mood.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/cpu/cpu_kernel.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace ortmodule {
inline namespace ORTM_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

typedef float FloatLanes __attribute__((vector_size(kVectorBytes)));
typedef uint32_t UIntLanes __attribute__((vector_size(kVectorBytes)));
typedef int32_t IntLanes __attribute__((vector_size(kVectorBytes)));
// For floats in memory. A memcpy would do, but GCC 12 makes copies of 16 bytes of some, and a
// vector that is read from two stores waits for both.
typedef float FloatLanesInMemory
    __attribute__((vector_size(kVectorBytes), aligned(alignof(float)), may_alias));

struct FloatVec {
  static constexpr int64_t kCount = kVectorBytes / 4;
  FloatLanes v;

  FloatVec() = default;
  FloatVec(FloatLanes lanes) : v(lanes) {}  // NOLINT: the same thing
  template <class T>
  requires std::is_arithmetic_v<T>
  explicit FloatVec(T x) : v(static_cast<float>(x) - FloatLanes{}) {}  // -0.0 - 0.0 keeps its sign

  static FloatVec load(const float* from) {
    return FloatLanes(*reinterpret_cast<const FloatLanesInMemory*>(from));
  }
  void store(float* to) const { *reinterpret_cast<FloatLanesInMemory*>(to) = v; }
  /// The first `count` < kCount elements, and 0; nothing behind them is touched.
  static FloatVec load(const float* from, int64_t count);
  void store(float* to, int64_t count) const;

  friend FloatVec operator+(FloatVec a, FloatVec b) { return a.v + b.v; }
  friend FloatVec operator-(FloatVec a, FloatVec b) { return a.v - b.v; }
  friend FloatVec operator*(FloatVec a, FloatVec b) { return a.v * b.v; }
  friend FloatVec operator/(FloatVec a, FloatVec b) { return a.v / b.v; }
  friend FloatVec operator-(FloatVec a) { return -a.v; }
  friend IntLanes operator<(FloatVec a, FloatVec b) { return a.v < b.v; }
  friend IntLanes operator>(FloatVec a, FloatVec b) { return a.v > b.v; }
  friend IntLanes operator<=(FloatVec a, FloatVec b) { return a.v <= b.v; }
  friend IntLanes operator>=(FloatVec a, FloatVec b) { return a.v >= b.v; }
  friend IntLanes operator==(FloatVec a, FloatVec b) { return a.v == b.v; }
};

/// All bits of the first `count` < kCount lanes.
inline IntLanes first_lanes(int64_t count) {
  alignas(64) static constexpr int32_t kMasks[32] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                                     -1, -1, -1, -1, -1, -1, -1, -1};
  IntLanes mask;
  std::memcpy(&mask, kMasks + 16 - count, sizeof(mask));
  return mask;
}

inline FloatVec FloatVec::load(const float* from, int64_t count) {
#if defined(__AVX512F__)
  return FloatLanes(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from));
#elif defined(__AVX2__)
  return FloatLanes(_mm256_maskload_ps(from, __m256i(first_lanes(count))));
#else
  FloatVec x{FloatLanes{}};
  for (int64_t i = 0; i < count; ++i) x.v[i] = from[i];
  return x;
#endif
}
// In parts: AVX2's masked store takes AMD's processors tens of cycles.
inline void FloatVec::store(float* to, int64_t count) const {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), __m512(v));
#else
  float lanes[kCount];
  store(lanes);
  int64_t at = 0;
  if (kCount > 4 && (count & 4)) {
    std::memcpy(to, lanes, 4 * sizeof(float));
    at = 4;
  }
  if (count & 2) {
    std::memcpy(to + at, lanes + at, 2 * sizeof(float));
    at += 2;
  }
  if (count & 1) to[at] = lanes[at];
#endif
}

/// The bits of a FloatVec, lane by lane.
struct UIntVec {
  UIntLanes v;
  friend UIntVec operator+(UIntVec a, uint32_t b) { return {a.v + b}; }
  friend UIntVec operator-(UIntVec a, uint32_t b) { return {a.v - b}; }
  friend UIntVec operator-(UIntVec a, UIntVec b) { return {a.v - b.v}; }
  friend UIntVec operator&(UIntVec a, uint32_t b) { return {a.v & b}; }
  friend UIntVec operator&(UIntVec a, UIntVec b) { return {a.v & b.v}; }
  friend UIntVec operator|(UIntVec a, UIntVec b) { return {a.v | b.v}; }
  friend UIntVec operator^(UIntVec a, UIntVec b) { return {a.v ^ b.v}; }
  friend UIntVec operator<<(UIntVec a, int b) { return {a.v << b}; }
};

inline UIntVec bits_of(FloatVec x) { return {reinterpret_cast<UIntLanes>(x.v)}; }
inline FloatVec float_of(UIntVec bits) { return reinterpret_cast<FloatLanes>(bits.v); }
inline FloatVec select(IntLanes mask, FloatVec a, FloatVec b) { return mask ? a.v : b.v; }
inline FloatVec multiply_add(FloatVec a, FloatVec b, FloatVec c) {
#if defined(__AVX512F__)
  return FloatLanes(_mm512_fmadd_ps(__m512(a.v), __m512(b.v), __m512(c.v)));
#elif defined(__FMA__)
  return FloatLanes(_mm256_fmadd_ps(__m256(a.v), __m256(b.v), __m256(c.v)));
#else
  return a * b + c;
#endif
}
inline FloatVec at_most(FloatVec x, float limit) {
  const FloatVec limits(limit);
#if defined(__AVX512F__)  // of a NaN and a number these give the second operand
  return FloatLanes(_mm512_maskz_min_ps(0xffff, __m512(limits.v), __m512(x.v)));
#elif defined(__AVX2__)
  return FloatLanes(_mm256_min_ps(__m256(limits.v), __m256(x.v)));
#else
  return select(x > limits, limits, x);
#endif
}
/// The larger of each lane; b where one of them is NaN.
inline FloatVec larger(FloatVec a, FloatVec b) {
#if defined(__AVX512F__)
  return FloatLanes(_mm512_maskz_max_ps(0xffff, __m512(a.v), __m512(b.v)));
#elif defined(__AVX2__)
  return FloatLanes(_mm256_max_ps(__m256(a.v), __m256(b.v)));
#else
  return select(a > b, a, b);
#endif
}
/// The smaller of each lane; b where one of them is NaN.
inline FloatVec smaller(FloatVec a, FloatVec b) {
#if defined(__AVX512F__)
  return FloatLanes(_mm512_maskz_min_ps(0xffff, __m512(a.v), __m512(b.v)));
#elif defined(__AVX2__)
  return FloatLanes(_mm256_min_ps(__m256(a.v), __m256(b.v)));
#else
  return select(a < b, a, b);
#endif
}
/// x, and 0 in the lanes where the mask is.
inline FloatVec masked(IntLanes mask, FloatVec x) {
  return reinterpret_cast<FloatLanes>(reinterpret_cast<IntLanes>(x.v) & mask);
}
inline FloatVec magnitude_of(FloatVec x) { return float_of(bits_of(x) & 0x7fffffffu); }
inline FloatVec fast_exp(FloatVec x) { return exp_of(x); }
inline FloatVec whole_exp(FloatVec x) { return whole_exp_of(x); }
inline FloatVec fast_tanh(FloatVec x) { return tanh_of(x); }
inline FloatVec fast_erf(FloatVec x) { return erf_of(x); }
inline FloatVec normal_cdf(FloatVec x) { return normal_cdf_of(x); }
inline FloatVec normal_density(FloatVec x) { return normal_density_of(x); }

/// out[i] = f(a[i]) for float arrays, whole vectors at a time; the tail is a vector of its own.
template <class F>
inline void map_vectors(const F& f, int64_t count, float* out, const float* a) {
  constexpr int64_t kStep = FloatVec::kCount;
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) f(FloatVec::load(a + i)).store(out + i);
  if (i < count) f(FloatVec::load(a + i, count - i)).store(out + i, count - i);
}

template <class F>
inline void map_vectors(const F& f, int64_t count, float* out, const float* a, const float* b) {
  constexpr int64_t kStep = FloatVec::kCount;
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep)
    f(FloatVec::load(a + i), FloatVec::load(b + i)).store(out + i);
  const int64_t rest = count - i;
  if (rest > 0) f(FloatVec::load(a + i, rest), FloatVec::load(b + i, rest)).store(out + i, rest);
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
