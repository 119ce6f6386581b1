// What layer, RMS and group norm share on the CPU: statistics of a row, the sum of partial column
// sums.
#pragma once

#include "kernels/cpu/row_math.h"
#include "kernels/norm.h"

namespace ortmodule {
inline namespace ORTM_ISA {

template <class C>
struct Statistics {
  C mean, inv_std_dev;
};

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
    const int64_t whole = count / 32 * 32;
    squares += row_sum(
        whole, [&](V v) { return (v - shift) * (v - shift); }, values);
    for (int64_t i = whole; i < count; ++i) {
      const double difference = static_cast<double>(values[i] - mean);
      squares += difference * difference;
    }
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
