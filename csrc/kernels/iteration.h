// Loops over tensors of any strides: sizes of 1 dropped, dimensions ordered by memory, neighbours
// merged wherever every operand allows it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/layout.h"

namespace ortmodule {

inline constexpr int kMaxRank = 16;
using Coords = std::array<int64_t, kMaxRank>;

struct IterationSpace {
  int rank = 0;
  Coords sizes{};
  std::vector<Coords> strides;  // one per operand, in elements

  int64_t count() const;
  int64_t inner() const { return rank ? sizes[rank - 1] : 1; }
  /// Coordinates of a position in row-major order of the space.
  Coords unravel(int64_t position) const;
  int64_t offset(size_t operand, const Coords& coords) const;
  /// Whether position p of the operand lies at element p.
  bool is_linear(size_t operand) const;
};

/// Strides with which an operand of `layout` broadcasts to `sizes` (right-aligned).
Sizes broadcast_strides(const Layout& layout, const Sizes& sizes);

/// The space of `sizes` for operands with these strides. Dimensions are ordered by falling stride
/// of operand `leader`, so that its memory is walked in order.
IterationSpace iteration_space(const Sizes& sizes, const std::vector<Sizes>& strides,
                               size_t leader = 0);

/// Number of dimensions of more than one element: what kMaxRank limits.
int real_rank(const Sizes& sizes);

}  // namespace ortmodule
