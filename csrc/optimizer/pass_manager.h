// Runs a list of passes, with timing, node counts, the disabled set, verification and dumps.
#pragma once

#include <vector>

#include "optimizer/pass.h"

namespace ortmodule {

/// Runs `passes` in order. Throws InternalError, naming the pass, if verification fails after one.
PassReport run_passes(Graph& graph, Stage stage, const std::vector<Pass>& passes,
                      const OptimizerOptions& options);

}  // namespace ortmodule
