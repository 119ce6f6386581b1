// What layer norm and RMS norm share on all devices: shapes, how rows are split among partial
// column sums, and the formulas of single elements. Sums over rows are each device's own, in its
// own order: results agree to rounding, not to the bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "ir/attr.h"
#include "kernels/axis.h"
#include "kernels/kernel.h"
#include "kernels/scalar_math.h"

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

/// The memory of operand or result i; null if it is absent.
template <class T>
T* data_or_null(std::span<const TensorView> views, size_t i) {
  return i < views.size() ? views[i].as<T>() : nullptr;
}

/// Gradients of scale and bias are column sums over all rows: one partial sum per block of rows.
/// The blocks depend on the shape only, so that neither the number of threads nor the GPU changes a
/// bit.
inline int64_t rows_per_block(int64_t rows) { return std::max<int64_t>(32, (rows + 127) / 128); }
inline int64_t row_blocks(int64_t rows) {
  return (rows + rows_per_block(rows) - 1) / rows_per_block(rows);
}

/// h = (x - mean) inv.
template <class C>
ORTM_HD C normalized(C x, C mean, C inv_std_dev) {
  return (x - mean) * inv_std_dev;
}

/// dx = inv (g - mean(g) - h mean(g h)) with g = dy scale.
template <class C>
ORTM_HD C normalized_gradient(C g, C h, C inv_std_dev, C mean_g, C mean_gh) {
  return inv_std_dev * (g - mean_g - h * mean_gh);
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
