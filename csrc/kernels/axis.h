// Axes of operations along one dimension.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/layout.h"

namespace ortmodule {

/// An axis attribute counted from the front.
inline int64_t normalized_axis(int64_t axis, size_t rank) {
  return axis < 0 ? axis + static_cast<int64_t>(rank) : axis;
}

/// Sizes before, at and behind an axis.
struct AxisSplit {
  int64_t outer = 1, axis = 1, inner = 1;
};
inline AxisSplit split_at(const Sizes& sizes, int64_t axis) {
  AxisSplit split;
  axis = normalized_axis(axis, sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t& part = static_cast<int64_t>(d) < axis    ? split.outer
                    : static_cast<int64_t>(d) == axis ? split.axis
                                                      : split.inner;
    part *= sizes[d];
  }
  return split;
}

}  // namespace ortmodule
