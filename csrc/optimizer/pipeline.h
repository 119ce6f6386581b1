// The pass pipelines of the optimizer. Their order matters, so it is written out by hand.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/pass.h"

namespace ortmodule {

/// What OptimizerOptions::disabled calls the grouping of pointwise nodes, which is no pass.
inline constexpr std::string_view kGroupPointwise = "group_pointwise";

/// How far a graph is optimized. Each level has the passes of those before it.
enum class OptimizationLevel : uint8_t { None, Cleanup, Fusions, Layouts, All };

/// Optimizes the forward graph, before its gradient is built: cleanup, fusions into ops with their
/// own gradient, layouts. Throws Error if `options.disabled` names an unknown pass.
PassReport optimize_forward(Graph& graph, const OptimizerOptions& options);

/// Optimizes the joint graph of forward and backward: mainly cleanup of the gradient.
PassReport optimize_joint(Graph& graph, const OptimizerOptions& options);

/// The pipelines, for reports and tests.
std::vector<Pass> forward_passes();
std::vector<Pass> joint_passes();

/// The names of all passes.
std::set<std::string> all_passes();
/// The names of the passes that a level leaves out, for OptimizerOptions::disabled.
std::set<std::string> passes_beyond(OptimizationLevel level);
/// The names of the passes whose ops read weights in a form that is no part of ONNX.
std::set<std::string> packing_passes();

}  // namespace ortmodule
