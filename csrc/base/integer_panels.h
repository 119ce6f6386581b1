// The layout of packed integer weights, of the same size on every machine: panels of columns whose
// inner dimension is padded, then the sums of the columns.
#pragma once

#include <cstdint>

namespace ortmodule {

/// Columns of a panel.
inline constexpr int64_t kIntegerPanel = 16;
/// The inner dimension is padded to a multiple of this.
inline constexpr int64_t kIntegerInner = 4;

constexpr int64_t padded_inner(int64_t inner) {
  return (inner + kIntegerInner - 1) / kIntegerInner * kIntegerInner;
}
constexpr int64_t padded_columns(int64_t columns) {
  return (columns + kIntegerPanel - 1) / kIntegerPanel * kIntegerPanel;
}

/// Bytes of the packed matrix [inner, columns]: elements, and 32 bits for the sum of each column.
constexpr int64_t integer_panel_bytes(int64_t inner, int64_t columns) {
  return padded_columns(columns) * (padded_inner(inner) + static_cast<int64_t>(sizeof(int32_t)));
}

}  // namespace ortmodule
