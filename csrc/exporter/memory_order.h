// Orders of dimensions in memory, by sizes and strides that may be symbolic.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dim_expr.h"

namespace ortmodule {

/// The dims of a dense tensor, the outermost in memory first; empty if it is not dense.
std::vector<int64_t> dense_order(const Dims& sizes, const Dims& strides);

/// The same of the dense tensor that torch makes in the likeness of one with gaps or an expanded
/// one; empty where equal strides leave the choice to sizes. Dims of size 1 may be anywhere.
std::vector<int64_t> order_in_likeness(const Dims& sizes, const Dims& strides);

}  // namespace ortmodule
