// The fastest plan that fits a number of bytes.
#pragma once

#include "optimizer/memory/memory_optimizer.h"

namespace ortmodule {

/// By stash: whether it holds a value that crosses from one layer to the next.
std::vector<bool> boundary_stashes(const MemoryChoice& choice);

/// By stash: recomputed if the level asks for it, before anything without gain is dropped.
std::vector<std::optional<Strategy>> level_candidates(const MemoryChoice& choice, int level);

/// What is recomputed for the least peak that is known to be reachable, and its figures.
std::pair<std::vector<std::optional<Strategy>>, PlanFigures> least_peak(MemoryChoice& choice,
                                                                        const Evaluate& evaluate);

/// The last of `count` plans, slower ones with less peak first, for which `fits` holds; 0 if none
/// does. Starts where the expectation, which ascends, ends, and looks at few plans from there: a
/// larger budget never ends before a smaller one.
size_t fastest_that_fits(size_t count, const std::function<bool(size_t)>& is_expected_to_fit,
                         const std::function<bool(size_t)>& fits);

/// Fills `chosen`, `minimum_bytes` and `fits` of `choice`. The candidates do not depend on the
/// budget, and dominated ones are dropped: a larger budget never gets a slower plan, a smaller one
/// never a higher peak. All combinations are candidates where they are few. If nothing fits, the
/// plan with the least peak is taken.
void choose_for_budget(MemoryChoice& choice, int64_t budget_bytes, const Evaluate& evaluate);

}  // namespace ortmodule
