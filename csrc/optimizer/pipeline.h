// The optimizer as one list per graph. The order is the meaning, so it is written by hand.
#pragma once

#include "optimizer/pass.h"

namespace ortmodule {

/// Before the gradient: one spelling, then composites that own a gradient.
PassReport optimize_forward(Graph& graph, const OptimizerOptions& options);

/// The joint graph of forward and backward: what the gradient left behind.
PassReport optimize_joint(Graph& graph, const OptimizerOptions& options);

/// The lists themselves, for reports and tests.
std::vector<Pass> forward_passes();
std::vector<Pass> joint_passes();

}  // namespace ortmodule
