// What layer norm and RMS norm share on the CPU: the sum of partial column sums.
#pragma once

#include "kernels/cpu/row_math.h"
#include "kernels/norm.h"

namespace ortmodule {
inline namespace ORTM_ISA {

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
