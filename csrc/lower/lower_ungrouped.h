// Lowering op by op, to compare with or to measure single nodes.
#pragma once

#include "lower/lower.h"

namespace ortmodule {

/// As lower(), but each pointwise node is a step of its own.
Lowered lower_ungrouped(const Graph& graph, Device device, const MemoryDecisions& decisions = {});

}  // namespace ortmodule
