// The pass pipelines of the optimizer. Their order matters, so it is written out by hand.
#pragma once

#include "optimizer/pass.h"

namespace ortmodule {

/// Optimizes the forward graph, before its gradient is built: cleanup, fusions into ops with their
/// own gradient, layouts. Throws Error if `options.disabled` names an unknown pass.
PassReport optimize_forward(Graph& graph, const OptimizerOptions& options);

/// Optimizes the joint graph of forward and backward: mainly cleanup of the gradient.
PassReport optimize_joint(Graph& graph, const OptimizerOptions& options);

/// The pipelines, for reports and tests.
std::vector<Pass> forward_passes();
std::vector<Pass> joint_passes();

}  // namespace ortmodule
