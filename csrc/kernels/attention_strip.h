// What the kernels of ScaledDotProductAttention that share a strip of scores tell each other.
#pragma once

#include <cstdint>

namespace ortmodule {

/// Where a strip [heads, rows, columns] lies among all scores [heads of all batches, L, S]; operand
/// `position` of the row kernels, in host memory. Columns start at 0.
struct StripPosition {
  int64_t first_head = 0;
  int64_t first_row = 0;
  int64_t queries = 0;  // L
  int64_t keys = 0;     // S
};

}  // namespace ortmodule
