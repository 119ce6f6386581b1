// What layer, RMS and group norm share on the CPU: statistics of a row, the sum of partial column
// sums.
#pragma once

#include "kernels/cpu/short_rows.h"
#include "kernels/norm.h"

namespace ortmodule {
inline namespace ORTM_ISA {

template <class C>
struct Statistics {
  C mean, inv_std_dev;
};

/// 1 / sqrt(squares / n + epsilon) of each row.
inline RowLanes inverse_deviation(const RowDoubles& squares, int64_t n, double epsilon) {
  const DoubleVec count(n), added(epsilon);
  return map_doubles([&](DoubleVec s) { return DoubleVec(1.0) / square_root(s / count + added); },
                     squares)
      .rounded();
}
inline RowLanes mean_of_rows(const RowDoubles& sum, int64_t n) {
  const DoubleVec count(n);
  return map_doubles([&](DoubleVec s) { return s / count; }, sum).rounded();
}

struct RowStatistics {
  RowLanes mean, inv_std_dev;
};

/// Of rows of n elements each, in two passes.
inline RowStatistics short_row_statistics(const RowColumns& x, int64_t n, double epsilon) {
  RowDoubles sum(0.0), squares(0.0);
  for (int64_t j = 0; j < n; ++j) sum = sum + RowDoubles(x[j]);
  const RowLanes mean = mean_of_rows(sum, n);
  for (int64_t j = 0; j < n; ++j) {
    const RowDoubles difference(x[j] - mean);
    squares = squares + difference * difference;
  }
  return {mean, inverse_deviation(squares, n, epsilon)};
}

/// The first `count` elements of scale or bias as floats.
template <class T>
void read_short(const T* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(computed(from[i]));
}

/// Of a row of n elements, in two passes.
template <class T>
Statistics<ComputeOf<T>> row_statistics(const T* x, int64_t n, double epsilon) {
  using C = ComputeOf<T>;
  using V = std::conditional_t<std::is_same_v<C, float>, FloatVec, double>;
  C buffer[kRowChunk];
  double sum = 0;
  for_each_chunk(n, [&](int64_t at, int64_t count) {
    sum += row_sum(
        count, [](auto v) { return v; }, computed_row(x + at, count, buffer));
  });
  const C mean = static_cast<C>(sum / static_cast<double>(n));
  const V shift(mean);
  double squares = 0;
  for_each_chunk(n, [&](int64_t at, int64_t count) {
    const C* values = computed_row(x + at, count, buffer);
    squares += row_sum(
        count, [&](V v) { return (v - shift) * (v - shift); }, values);
  });
  const double variance = squares / static_cast<double>(n);
  return {mean, static_cast<C>(1.0 / std::sqrt(variance + epsilon))};
}

/// out[c] = sum over blocks of partials[block * stride + c], in double.
template <class T>
void reduce_partials(const KernelContext& context, const ComputeOf<T>* partials, int64_t blocks,
                     int64_t stride, int64_t columns, T* out) {
  constexpr int64_t kStrip = 256;
  const int64_t strips = ceil_div(columns, kStrip);
  parallel_ranges(context, strips, grain_for(blocks * kStrip), [&](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t at = strip * kStrip, count = std::min(kStrip, columns - at);
      double sums[kStrip] = {};
      for (int64_t block = 0; block < blocks; ++block) {
        const ComputeOf<T>* row = partials + block * stride + at;
        for (int64_t c = 0; c < count; ++c) sums[c] += static_cast<double>(row[c]);
      }
      for (int64_t c = 0; c < count; ++c) out[at + c] = stored<T>(sums[c]);
    }
  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
