// Structural invariants of a graph, checked between stages in tests and under ORTMODULE_VERIFY=1.
#pragma once

#include "base/error.h"
#include "ir/graph.h"

namespace ortmodule {

/// Checks definitions before uses, use lists, types set, forward never reading backward, outputs
/// alive. Returns the first violation with the lines around it, or nothing.
Reason verify(const Graph& graph);

}  // namespace ortmodule
