// Reverse-mode differentiation of a forward graph into one joint graph.
#pragma once

#include <memory>

#include "ir/graph.h"

namespace ortmodule {

/// Returns a joint graph: the forward nodes, then backward nodes (Region::Backward) that compute,
/// from one InputKind::GradOutput input per differentiable output, one OutputKind::Gradient output
/// per input with requires_grad (null where no gradient flows). Gradients have their input's shape
/// and type. Contributions to one value are added in reverse program order of its uses.
/// Throws Error if an op on a differentiated path has neither a gradient rule nor a body.
std::unique_ptr<Graph> build_gradient(const Graph& forward);

}  // namespace ortmodule
