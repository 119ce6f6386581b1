// Softmax, LogSoftmax and their gradients (softmax.cu) over rows that lie in the registers of a
// group of lanes or of a block: of whole vectors, up to 32 elements a thread. Every element is read
// once, all loads of a thread come before the first use, and exp is computed once. Sums, as there,
// continue in double after kRun additions.
#pragma once

#include <limits>

#include "kernels/cuda/exp_of_difference.cuh"
#include "kernels/cuda/held_row.cuh"
#include "kernels/cuda/reduce.cuh"

namespace ortmodule::cuda {

inline constexpr int kHeldThreads = 512;
/// Vectors of a thread.
template <class T>
inline constexpr int kRowSlots = sizeof(T) == 8 ? 8 : static_cast<int>(2 * sizeof(T));
template <class T>
inline constexpr int kHeldInRow = kRowSlots<T>* kVectorCount<T>;

/// What a lane needs of a sum to add up a part of a row.
template <class Computed>
struct LaneSum {
  using C = Computed;
  using Partial = double;
  __device__ __forceinline__ static double start() { return 0; }
  __device__ __forceinline__ static C add(C a, C b) { return a + b; }
  __device__ __forceinline__ static double combine(double a, double b) { return a + b; }
};

/// Rows one after another.
struct HeldRows {
  int64_t rows = 0;
  int count = 0, lanes = 1;
};

template <class T, bool log>
__global__ __launch_bounds__(kHeldThreads) void softmax_held_cuda(ORTM_GRID_CONSTANT(HeldRows) r,
                                                                  const T* x, T* y) {
  using C = ComputeOf<T>;
  constexpr int kSlots = kRowSlots<T>, kCount = kVectorCount<T>;
  constexpr C kLeast = -std::numeric_limits<C>::infinity();
  ORTM_DYNAMIC_SHARED(double, scratch);
  const RowOfThread at(r.lanes, r.rows);
  const VectorsOfRow<T, kSlots> row(at.exists ? r.count : 0, at.lane, r.lanes);
  Words<T, kCount> elements[kSlots];
  row.load(elements, x + at.row * r.count, narrowed(kLeast, T{}));
  C values[kSlots][kCount], max = kLeast;
  row.each_slot(r.count, [&](int k) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      values[k][e] = widened(elements[k][e]);
      max = larger_number(max, values[k][e]);
    }
  });
  max = row_reduce(max, MaxOp(), r.lanes, reinterpret_cast<C*>(scratch));
  Accumulator<LaneSum<C>> part;
  row.each_slot(r.count, [&](int k) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      values[k][e] -= max;
      const C power = exp_in_row<T>(values[k][e]);
      part.add(power);
      if (!log) values[k][e] = power;
    }
    part.tick(kCount);
  });
  const double sum = row_reduce(part.result(), AddOp(), r.lanes, scratch);
  const C factor = static_cast<C>(log ? std::log(sum) : 1.0 / sum);
  row.each_slot(r.count, [&](int k) {
#pragma unroll
    for (int e = 0; e < kCount; ++e)
      values[k][e] = log ? values[k][e] - factor : values[k][e] * factor;
    row.store(y + at.row * r.count, k, values[k]);
  });
}

template <class T, bool log>
__global__ __launch_bounds__(kHeldThreads) void softmax_grad_held_cuda(ORTM_GRID_CONSTANT(HeldRows)
                                                                           r,
                                                                       const T* dy, const T* y,
                                                                       T* dx) {
  using C = ComputeOf<T>;
  constexpr int kSlots = kRowSlots<T>, kCount = kVectorCount<T>;
  ORTM_DYNAMIC_SHARED(double, scratch);
  const RowOfThread at(r.lanes, r.rows);
  const VectorsOfRow<T, kSlots> row(at.exists ? r.count : 0, at.lane, r.lanes);
  Words<T, kCount> gradient[kSlots], result[kSlots];
  row.load(gradient, dy + at.row * r.count, T{});
  row.load(result, y + at.row * r.count, T{});
  Accumulator<LaneSum<C>> part;
  row.each_slot(r.count, [&](int k) {
#pragma unroll
    for (int e = 0; e < kCount; ++e)
      part.add(log ? widened(gradient[k][e]) : widened(gradient[k][e]) * widened(result[k][e]));
    part.tick(kCount);
  });
  const C sum = static_cast<C>(row_reduce(part.result(), AddOp(), r.lanes, scratch));
  row.each_slot(r.count, [&](int k) {
    C values[kCount];
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const C of_dy = widened(gradient[k][e]), of_y = widened(result[k][e]);
      values[e] = log ? of_dy - fast_exp(of_y) * sum : of_y * (of_dy - sum);
    }
    row.store(dx + at.row * r.count, k, values);
  });
}

}  // namespace ortmodule::cuda
