// Which outputs can have backward passes of their own.
#pragma once

#include <cstddef>
#include <vector>

#include "ir/graph.h"

namespace ortmodule {

/// A number for each of the `outputs` of forward: equal for two whose backward passes both need a
/// step that reads forward's values. Eager PyTorch frees these in the first of two passes, so the
/// second one needs retain_graph; outputs of different groups do not.
std::vector<size_t> gradient_groups(const Graph& joint, size_t outputs);

}  // namespace ortmodule
