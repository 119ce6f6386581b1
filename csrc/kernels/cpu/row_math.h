// Sums, extrema and exponentials over rows, in float (on vectors) or double. Float sums keep 32
// partial sums over at most kRowChunk elements and continue in double, so that the result depends
// on neither the instruction set nor the number of threads and errs less than a plain float sum.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/axis.h"
#include "kernels/cpu/float_vec.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Rows are worked on in pieces of this many elements, which stay in the first-level cache.
inline constexpr int64_t kRowChunk = 1024;

// --- 32 partial results --------------------------------------------------------------------------
struct Lanes32 {
  static constexpr int kVectors = 32 / static_cast<int>(FloatVec::kCount);
  FloatVec v[kVectors];

  explicit Lanes32(float x) {
    for (FloatVec& vector : v) vector = FloatVec(x);
  }
  static Lanes32 load(const float* from) {
    Lanes32 lanes(0.0f);
    for (int i = 0; i < kVectors; ++i) lanes.v[i] = FloatVec::load(from + i * FloatVec::kCount);
    return lanes;
  }
  /// The first `count` elements, the rest `fill`.
  static Lanes32 load(const float* from, int64_t count, float fill) {
    float padded[32];
    for (int64_t i = 0; i < 32; ++i) padded[i] = i < count ? from[i] : fill;
    return load(padded);
  }
  void store(float* to) const {
    for (int i = 0; i < kVectors; ++i) v[i].store(to + i * FloatVec::kCount);
  }
  double sum() const {
    float parts[32];
    store(parts);
    double sums[16];
    for (int i = 0; i < 16; ++i)
      sums[i] = static_cast<double>(parts[i]) + static_cast<double>(parts[i + 16]);
    for (int i = 0; i < 8; ++i) sums[i] += sums[i + 8];
    for (int i = 0; i < 4; ++i) sums[i] += sums[i + 4];
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
  }
};

/// Sum over i < count of f(vectors of the arrays at i), where f maps fill values to zero.
template <class F, class... Arrays>
inline double sum_lanes(int64_t count, float fill, const F& f, const Arrays*... arrays) {
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kRowChunk) {
    const int64_t end = std::min(begin + kRowChunk, count);
    Lanes32 sums(0.0f);
    int64_t i = begin;
    for (; i + 32 <= end; i += 32)
      for (int k = 0; k < Lanes32::kVectors; ++k)
        sums.v[k] = sums.v[k] + f(FloatVec::load(arrays + i + k * FloatVec::kCount)...);
    if (i < end) {
      const auto add = [&](const auto&... lanes) {
        for (int k = 0; k < Lanes32::kVectors; ++k) sums.v[k] = sums.v[k] + f(lanes.v[k]...);
      };
      add(Lanes32::load(arrays + i, end - i, fill)...);
    }
    total += sums.sum();
  }
  return total;
}

/// The same in double, with eight partial sums.
template <class F, class... Arrays>
inline double sum_doubles(int64_t count, const F& f, const Arrays*... arrays) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int k = 0; k < 8; ++k) sums[k] += f(arrays[i + k]...);
  for (int k = 0; i < count; ++i, ++k) sums[k] += f(arrays[i]...);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

template <class F, class... Arrays>
inline double row_sum(int64_t count, const F& f, const float* first, const Arrays*... arrays) {
  return sum_lanes(count, 0.0f, f, first, arrays...);
}
template <class F, class... Arrays>
inline double row_sum(int64_t count, const F& f, const double* first, const Arrays*... arrays) {
  return sum_doubles(count, f, first, arrays...);
}

// --- extrema and exponentials --------------------------------------------------------------------
/// The largest element, not counting NaN; -infinity if there is none.
inline float row_max(int64_t count, const float* x) {
  const float least = -std::numeric_limits<float>::infinity();
  Lanes32 most(least);
  const auto take = [&](const Lanes32& lanes) {
    for (int k = 0; k < Lanes32::kVectors; ++k)
      most.v[k] = select(lanes.v[k] > most.v[k], lanes.v[k], most.v[k]);
  };
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) take(Lanes32::load(x + i));
  if (i < count) take(Lanes32::load(x + i, count - i, least));
  float parts[32];
  most.store(parts);
  for (int width = 16; width >= 4; width /= 2)
    for (int k = 0; k < width; ++k)
      parts[k] = parts[k] > parts[k + width] ? parts[k] : parts[k + width];
  const float left = parts[0] > parts[2] ? parts[0] : parts[2];
  const float right = parts[1] > parts[3] ? parts[1] : parts[3];
  return left > right ? left : right;
}
inline double row_max(int64_t count, const double* x) {
  double result = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < count; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

/// Sum of exp(x - shift).
inline double row_sum_exp(int64_t count, const float* x, float shift) {
  const FloatVec shifts(shift);
  // The fill is harmless: only with a shift of -infinity is exp(fill - shift) not 0, and then every
  // element gives NaN anyway.
  return sum_lanes(
      count, -std::numeric_limits<float>::infinity(),
      [&](FloatVec v) { return fast_exp(v - shifts); }, x);
}
inline double row_sum_exp(int64_t count, const double* x, double shift) {
  return sum_doubles(
      count, [&](double v) { return std::exp(v - shift); }, x);
}

/// out = exp(x - shift); returns the sum.
inline double row_exp(int64_t count, const float* x, float shift, float* out) {
  const FloatVec shifts(shift);
  map_vectors([&](FloatVec v) { return fast_exp(v - shifts); }, count, out, x);
  return sum_lanes(
      count, 0.0f, [](FloatVec v) { return v; }, out);
}
inline double row_exp(int64_t count, const double* x, double shift, double* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = std::exp(x[i] - shift);
  return sum_doubles(
      count, [](double v) { return v; }, out);
}

// --- rows of 16-bit floats -----------------------------------------------------------------------
// Not inlined, because GCC 12 loses track of what such a loop initializes.
template <class T>
__attribute__((noinline)) void convert_row(const T* row, int64_t count, float* buffer) {
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) buffer[i] = computed(row[i]);
}

/// A piece of a row in the computation type: the memory itself, or `buffer` filled from it.
template <class T>
inline const ComputeOf<T>* computed_row(const T* row, int64_t count, ComputeOf<T>* buffer) {
  if constexpr (kIsHalf<T>) {
    convert_row(row, count, buffer);
    return buffer;
  } else {
    (void)count;
    (void)buffer;
    return row;
  }
}

/// Where to compute a piece of a row of T: its memory itself, or `buffer`, which store_row rounds.
template <class T>
inline ComputeOf<T>* writable_row(T* row, ComputeOf<T>* buffer) {
  if constexpr (kIsHalf<T>) {
    (void)row;
    return buffer;
  } else {
    (void)buffer;
    return row;
  }
}
template <class T>
inline void store_row(T* row, const ComputeOf<T>* values, int64_t count) {
  if constexpr (kIsHalf<T>) {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) row[i] = stored<T>(values[i]);
  } else {
    (void)row;  // computed in place
    (void)values;
    (void)count;
  }
}

/// body(begin, count) over the pieces of a row.
template <class Body>
inline void for_each_chunk(int64_t count, const Body& body) {
  for (int64_t begin = 0; begin < count; begin += kRowChunk)
    body(begin, std::min(kRowChunk, count - begin));
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
