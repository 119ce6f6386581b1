// Checks a graph on numbers before a plan is made for them.
#pragma once

#include "base/dim_expr.h"
#include "ir/graph.h"

namespace ortmodule {

/// Infers every node again with these sizes. An import only knows that symbolic sizes may be equal;
/// a model of others, or its feeds, may contradict that. Throws Error, which names the node.
void check_sizes(const Graph& graph, const SymbolValues& values);

}  // namespace ortmodule
