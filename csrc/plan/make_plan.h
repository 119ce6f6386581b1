// Makes plans from lowered graphs. The memory optimizer and the runtime share these pure functions,
// so that both see the same peak.
#pragma once

#include <memory>
#include <vector>

#include "base/machine_rates.h"
#include "lower/lower.h"
#include "plan/placement.h"
#include "plan/plan.h"

namespace ortmodule {

struct PlanRequest {
  SymbolValues symbols;
  std::vector<Layout> arguments;      // by graph input; GradOutput inputs are ignored
  std::vector<Sizes> output_strides;  // those of eager, by GraphOutput::index; empty: as computed
  int64_t threads = 1;                // of the pool that runs the steps
  MachineRates rates;                 // by which copies to the host are scheduled
  PlacementOptions placement;         // of a plan without backward
};

/// Plans forward and backward (if `lowered` has one), for a backward pass that runs once. Steps
/// whose sizes are those of `earlier`, a plan of the same graph, take kernels and facts from there.
std::shared_ptr<Plan> make_plan(const Lowered& lowered, const PlanRequest& request,
                                const Plan* earlier = nullptr);

/// A plan with the forward part of `base`, unchanged, and the backward part of `lowered`, which is
/// the same graph, possibly after prune_absent_gradients(). With `keep_saved`, backward does not
/// overwrite saved activations, so that it can run again (retain_graph).
std::shared_ptr<Plan> make_backward_plan(const Plan& base, const Lowered& lowered,
                                         const PlanRequest& request, bool keep_saved);

}  // namespace ortmodule
