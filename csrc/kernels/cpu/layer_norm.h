// What layer norm and RMS norm share: how rows are split among partial column sums.
#pragma once

#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Rows and columns of a normalization over the trailing dimensions from `axis`.
struct NormShape {
  int64_t rows = 1, columns = 1;
};
inline NormShape norm_shape(const Sizes& sizes, const Attrs& attrs) {
  const int64_t axis = normalized_axis(attrs.integer("axis", -1), sizes.size());
  NormShape shape;
  for (size_t d = 0; d < sizes.size(); ++d)
    (static_cast<int64_t>(d) < axis ? shape.rows : shape.columns) *= sizes[d];
  return shape;
}

/// Gradients of scale and bias are column sums over all rows: one partial sum per block of rows.
/// The blocks depend on the shape only, so that the number of threads changes no bit.
inline int64_t rows_per_block(int64_t rows) { return std::max<int64_t>(32, ceil_div(rows, 128)); }
inline int64_t row_blocks(int64_t rows) { return ceil_div(rows, rows_per_block(rows)); }

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
