// Sums, extrema and exponentials over rows, in float (on vectors) or double. Float sums keep 32
// partial sums over at most kRowChunk elements and continue in double, so that the result depends
// on neither the instruction set nor the number of threads and errs less than a plain float sum.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/axis.h"
#include "kernels/cpu/double_vec.h"
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
  /// In double: halves are added to each other until four sums are left.
  double sum() const {
    constexpr int kWidth = static_cast<int>(FloatVec::kCount / 2);  // lanes of a DoubleVec
    DoubleVec sums[16 / kWidth];
    for (int i = 0; i < kVectors / 2; ++i) {
      const DoubleHalves low(v[i]), high(v[i + kVectors / 2]);
      for (int h = 0; h < 2; ++h) sums[2 * i + h] = low.half[h] + high.half[h];
    }
    for (int count = 16 / kWidth; count > 1 && count * kWidth > 4; count /= 2)
      for (int i = 0; i < count / 2; ++i) sums[i] = sums[i] + sums[i + count / 2];
    double parts[kWidth < 4 ? 4 : kWidth];
    std::memcpy(parts, sums, sizeof(parts));
    for (int i = 0; i < kWidth - 4; ++i) parts[i] += parts[i + 4];
    return (parts[0] + parts[2]) + (parts[1] + parts[3]);
  }
};

/// body(k, at, lanes) for the vectors of the fewer than 32 elements [begin, end): vector k begins
/// at `at` and has so many elements.
template <class Body>
inline void for_each_tail_vector(int64_t begin, int64_t end, const Body& body) {
  for (int k = 0; begin + k * FloatVec::kCount < end; ++k) {
    const int64_t at = begin + k * FloatVec::kCount;
    body(k, at, std::min(FloatVec::kCount, end - at));
  }
}

/// Sum over i < count of f(vectors of the arrays at i).
template <class F, class... Arrays>
inline double sum_lanes(int64_t count, const F& f, const Arrays*... arrays) {
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kRowChunk) {
    const int64_t end = std::min(begin + kRowChunk, count);
    Lanes32 sums(0.0f);
    int64_t i = begin;
    for (; i + 32 <= end; i += 32)
      for (int k = 0; k < Lanes32::kVectors; ++k)
        sums.v[k] = sums.v[k] + f(FloatVec::load(arrays + i + k * FloatVec::kCount)...);
    Lanes32 all = sums;  // a copy, since variable positions keep an array from registers
    for_each_tail_vector(i, end, [&](int k, int64_t at, int64_t lanes) {
      all.v[k] =
          all.v[k] + (lanes == FloatVec::kCount
                          ? f(FloatVec::load(arrays + at)...)
                          : masked(first_lanes(lanes), f(FloatVec::load(arrays + at, lanes)...)));
    });
    total += all.sum();
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
  return sum_lanes(count, f, first, arrays...);
}
template <class F, class... Arrays>
inline double row_sum(int64_t count, const F& f, const double* first, const Arrays*... arrays) {
  return sum_doubles(count, f, first, arrays...);
}

// --- extrema and exponentials --------------------------------------------------------------------
/// Folds a row of floats by f of two vectors, of which the first is the result so far, and `one` of
/// two numbers; `start` changes nothing.
template <class F, class One>
inline float fold_row(int64_t count, const float* x, float start, const F& f, const One& one) {
  Lanes32 whole(start);
  int64_t i = 0;
  for (; i + 32 <= count; i += 32)
    for (int k = 0; k < Lanes32::kVectors; ++k)
      whole.v[k] = f(whole.v[k], FloatVec::load(x + i + k * FloatVec::kCount));
  Lanes32 folded = whole;  // as in sum_lanes
  for_each_tail_vector(i, count, [&](int k, int64_t at, int64_t lanes) {
    if (lanes == FloatVec::kCount) {
      folded.v[k] = f(folded.v[k], FloatVec::load(x + at));
    } else {
      const FloatVec rest = FloatVec::load(x + at, lanes);
      folded.v[k] = f(folded.v[k], select(first_lanes(lanes), rest, FloatVec(start)));
    }
  });
  for (int width = Lanes32::kVectors / 2; width > 0; width /= 2)
    for (int k = 0; k < width; ++k) folded.v[k] = f(folded.v[k], folded.v[k + width]);
  float parts[FloatVec::kCount];
  folded.v[0].store(parts);
  for (int64_t width = FloatVec::kCount / 2; width > 0; width /= 2)
    for (int64_t k = 0; k < width; ++k) parts[k] = one(parts[k], parts[k + width]);
  return parts[0];
}

/// The largest element, not counting NaN; -infinity if there is none.
inline float row_max(int64_t count, const float* x) {
  return fold_row(
      count, x, -std::numeric_limits<float>::infinity(),
      [](FloatVec most, FloatVec v) { return larger(v, most); },
      [](float a, float b) { return a > b ? a : b; });
}
inline double row_max(int64_t count, const double* x) {
  double result = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < count; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

/// Sum of exp(x - shift).
inline double row_sum_exp(int64_t count, const float* x, float shift) {
  const FloatVec shifts(shift);
  return sum_lanes(
      count, [&](FloatVec v) { return fast_exp(v - shifts); }, x);
}
inline double row_sum_exp(int64_t count, const double* x, double shift) {
  return sum_doubles(
      count, [&](double v) { return std::exp(v - shift); }, x);
}

/// out = exp(x - shift); returns the sum.
inline double row_exp(int64_t count, const float* x, float shift, float* out) {
  const FloatVec shifts(shift);
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kRowChunk) {
    const int64_t end = std::min(begin + kRowChunk, count);
    Lanes32 sums(0.0f);
    int64_t i = begin;
    for (; i + 32 <= end; i += 32) {
      for (int k = 0; k < Lanes32::kVectors; ++k) {
        const FloatVec power = fast_exp(FloatVec::load(x + i + k * FloatVec::kCount) - shifts);
        power.store(out + i + k * FloatVec::kCount);
        sums.v[k] = sums.v[k] + power;
      }
    }
    Lanes32 all = sums;  // as in sum_lanes
    for_each_tail_vector(i, end, [&](int k, int64_t at, int64_t lanes) {
      if (lanes == FloatVec::kCount) {
        const FloatVec power = fast_exp(FloatVec::load(x + at) - shifts);
        power.store(out + at);
        all.v[k] = all.v[k] + power;
      } else {
        const FloatVec power = fast_exp(FloatVec::load(x + at, lanes) - shifts);
        power.store(out + at, lanes);
        all.v[k] = all.v[k] + masked(first_lanes(lanes), power);
      }
    });
    total += all.sum();
  }
  return total;
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
