// Concrete plans from lowered graphs: pure functions that the memory optimizer and the runtime
// share, so that there is one model of the peak.
#pragma once

#include <memory>
#include <vector>

#include "lower/lower.h"
#include "plan/plan.h"

namespace ortmodule {

struct PlanRequest {
  SymbolValues symbols;
  std::vector<Layout> arguments;      // by graph input; those of GradOutput inputs are not read
  std::vector<Sizes> output_strides;  // eager's, by GraphOutput::index; empty: as computed
};

/// Plans forward and backward (if `lowered` holds any), for a backward pass that runs once.
std::shared_ptr<Plan> make_plan(const Lowered& lowered, const PlanRequest& request);

/// A plan whose forward part is `base`'s, byte for byte, and whose backward part is that of
/// `lowered`: the same graph, perhaps after prune_absent_gradients. With `keep_saved` the pass
/// leaves what forward saved as it was, so that it can run again (retain_graph).
std::shared_ptr<Plan> make_backward_plan(const Plan& base, const Lowered& lowered,
                                         const PlanRequest& request, bool keep_saved);

}  // namespace ortmodule
