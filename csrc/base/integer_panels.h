// The layout of packed integer weights, of the same size on every machine: panels of columns whose
// inner dimension is padded, the sums of the columns, and room for what kernels keep out of the
// panels (kernels/cpu/integer_rests.h).
#pragma once

#include <algorithm>
#include <cstdint>

namespace ortmodule {

/// Columns of a panel.
inline constexpr int64_t kIntegerPanel = 16;
/// The inner dimension is padded to a multiple of this.
inline constexpr int64_t kIntegerInner = 8;

constexpr int64_t padded_inner(int64_t inner) {
  return (inner + kIntegerInner - 1) / kIntegerInner * kIntegerInner;
}
constexpr int64_t padded_columns(int64_t columns) {
  return (columns + kIntegerPanel - 1) / kIntegerPanel * kIntegerPanel;
}

/// Bytes of the panels and of 32 bits for the sum of each column.
constexpr int64_t integer_sums_end(int64_t inner, int64_t columns) {
  return padded_columns(columns) * (padded_inner(inner) + static_cast<int64_t>(sizeof(int32_t)));
}
/// Bytes for what is kept out of the panels: 2 % of the matrix, where all together stays within the
/// 5 % more that packed weights may take; at least one number.
constexpr int64_t integer_rest_bytes(int64_t inner, int64_t columns) {
  const int64_t bytes = inner * columns;
  const int64_t spare = bytes + bytes / 20 - integer_sums_end(inner, columns);
  return std::max<int64_t>(1, std::min(spare, bytes / 50) / 4) * 4;
}
/// Bytes of the packed matrix [inner, columns].
constexpr int64_t integer_panel_bytes(int64_t inner, int64_t columns) {
  return integer_sums_end(inner, columns) + integer_rest_bytes(inner, columns);
}

}  // namespace ortmodule
