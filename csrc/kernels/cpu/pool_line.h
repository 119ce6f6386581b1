// A line of outputs of pools of row-major float32: vectors of neighbouring windows keep their
// results in registers, place by place. A Fold has `start`, which changes no result, and `add`.
#pragma once

#include <limits>

#include "kernels/cpu/lane_loads.h"
#include "kernels/pool.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Tasks with buffers of their own: two for each thread, so that one which starts late takes less.
inline int64_t pool_tasks(const StepFacts& facts) {
  return 2 * std::max<int64_t>(facts.threads, 1);
}

/// The larger of two elements, the first if they are equal, NaN if one is: the last of two.
struct LargestFold {
  static FloatVec start() { return FloatVec(-std::numeric_limits<float>::infinity()); }
  static FloatVec add(FloatVec so_far, FloatVec value) {
    return select(value == value, larger(value, so_far), value);
  }
  static FloatVec finish(FloatVec found) { return found; }
};

/// Windows of `lines` lines, `apart` elements from each other.
struct LineWindows {
  int64_t lines, apart;
  int64_t kernel, dilation, stride;  // along a line
};

/// Neighbouring windows, kVectors vectors of them; x is the first place of the first. kStep and
/// kKernel are the stride and the width of dense windows where the compiler knows them, or 0.
template <class Fold, int64_t kStep, int64_t kKernel, int kVectors>
inline void pool_vectors(const float* x, const LineWindows& w, FloatVec (&results)[kVectors]) {
  const int64_t kernel = kKernel ? kKernel : w.kernel, dilation = kKernel ? 1 : w.dilation;
  const int64_t step = kStep ? kStep : w.stride;
  ORTM_UNROLL
  for (FloatVec& result : results) result = Fold::start();
  for (int64_t line = 0; line < w.lines; ++line) {
    const float* at = x + line * w.apart;
    for (int64_t k = 0; k < kernel; ++k, at += dilation) {
      ORTM_UNROLL
      for (int64_t v = 0; v < kVectors; ++v)
        results[v] =
            Fold::add(results[v], load_every<kStep>(at + v * FloatVec::kCount * step, step));
    }
  }
}

/// A row of `count` windows. Less than a vector of them reads as much as a whole one.
template <class Fold, int64_t kStep, int64_t kKernel>
void pool_line(const float* x, const LineWindows& w, int64_t count, float* y) {
  constexpr int64_t kCount = FloatVec::kCount;
  constexpr int kTogether = 2;
  const int64_t step = kStep ? kStep : w.stride;
  int64_t o = 0;
  for (; o + kTogether * kCount <= count; o += kTogether * kCount) {
    FloatVec results[kTogether];
    pool_vectors<Fold, kStep, kKernel>(x + o * step, w, results);
    ORTM_UNROLL
    for (int64_t v = 0; v < kTogether; ++v) results[v].store(y + o + v * kCount);
  }
  for (; o < count; o += kCount) {
    if (o + kCount > count) o = std::max<int64_t>(count - kCount, 0);  // some once more
    FloatVec results[1];
    pool_vectors<Fold, kStep, kKernel>(x + o * step, w, results);
    count < kCount ? results[0].store(y, count) : results[0].store(y + o);
  }
}

/// A row of windows that lie `stride` apart: those at every place are folded, vector by vector, and
/// every stride-th is taken.
template <class Fold>
void pool_line_apart(const float* x, const LineWindows& w, int64_t count, float* y) {
  constexpr int64_t kCount = FloatVec::kCount;
  const int64_t readable = (std::max(count, kCount) - 1) * w.stride + 1;
  for (int64_t at = 0, o = 0; o < count; at += kCount) {
    at = std::min(at, readable - kCount);  // some once more
    FloatVec results[1];
    pool_vectors<Fold, 1, 0>(x + at, w, results);
    float found[kCount];
    results[0].store(found);
    for (; o < count && o * w.stride < at + kCount; ++o) y[o] = found[o * w.stride - at];
  }
}

using PoolLine = void (*)(const float* x, const LineWindows& w, int64_t count, float* y);

template <class Fold>
PoolLine pool_line_for(const PoolAxis& columns) {
  const bool dense = columns.dilation == 1;
  if (columns.stride == 2 && dense && columns.kernel == 2) return pool_line<Fold, 2, 2>;
  if (columns.stride == 2 && dense && columns.kernel == 3) return pool_line<Fold, 2, 3>;
  if (columns.stride == 2) return pool_line<Fold, 2, 0>;
  if (columns.stride == 1 && dense && columns.kernel == 3) return pool_line<Fold, 1, 3>;
  if (columns.stride == 1) return pool_line<Fold, 1, 0>;
  return columns.stride <= FloatVec::kCount ? pool_line_apart<Fold> : pool_line<Fold, 0, 0>;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
