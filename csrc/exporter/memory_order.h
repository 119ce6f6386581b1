// The memory order of dimensions, from sizes and strides that may be symbolic.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dim_expr.h"

namespace ortmodule {

/// The dims of a dense tensor, outermost first; empty if it is not provably dense.
std::vector<int64_t> dense_order(const Dims& sizes, const Dims& strides);

/// The same for the result of torch.empty_like on a non-dense or expanded tensor; empty where
/// equal strides make the order depend on sizes. The place of dims of size 1 is arbitrary.
std::vector<int64_t> order_in_likeness(const Dims& sizes, const Dims& strides);

}  // namespace ortmodule
