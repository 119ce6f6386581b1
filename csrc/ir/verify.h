// Structural invariants of a graph, checked between stages in tests and with ORTMODULE_VERIFY=1.
#pragma once

#include "base/error.h"
#include "ir/graph.h"

namespace ortmodule {

/// Checks definitions before uses, use lists, types, unique names, that forward does not read
/// backward, and outputs. Returns the first violation with the lines around it, or nullopt.
Reason verify(const Graph& graph);

}  // namespace ortmodule
