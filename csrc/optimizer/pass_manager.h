// Runs a list of passes and does for all of them what none should do for itself: time, node
// counts, the disabled set, fuel, verification and dumps.
#pragma once

#include <vector>

#include "optimizer/pass.h"

namespace ortmodule {

/// Runs `passes` in order. InternalError, naming the pass, if verification fails after one.
PassReport run_passes(Graph& graph, Stage stage, const std::vector<Pass>& passes,
                      const OptimizerOptions& options);

}  // namespace ortmodule
