// Models of 16 bits on processors that compute in 32.
#pragma once

#include "optimizer/pass.h"

namespace ortmodule {

/// Lets a graph with products or sums in float16 compute in float32: weights are cast where they
/// are read, results are rounded where they leave the graph or a node needs float16. For inference
/// on the host, by kernels of our own.
bool widen_halves(Graph& graph, PassContext& context);

}  // namespace ortmodule
