// Chooses the fastest set of recomputations whose peak fits a budget in bytes.
#pragma once

#include <functional>

#include "optimizer/memory/memory_optimizer.h"

namespace ortmodule {

/// By stash: whether it contains a value that crosses a layer boundary.
std::vector<bool> boundary_stashes(const MemoryChoice& choice);

/// By stash: what the level recomputes, before recomputations without gain are dropped.
std::vector<std::optional<Strategy>> level_candidates(const MemoryChoice& choice, int level);

/// The recomputations with the lowest peak among all candidates, and their cost.
std::pair<std::vector<std::optional<Strategy>>, PlanFigures> least_peak(MemoryChoice& choice,
                                                                        const Evaluate& evaluate);

/// A plan for other shapes must save this part of the step's time, to be made to compare it.
inline constexpr double kLeastSaving = 0.02;

/// The candidates of a budget, in order of ascending peak and descending time.
struct BudgetCandidates {
  size_t count = 0;
  std::function<int64_t(size_t)> expected_bytes;  // ascending
  std::function<int64_t(size_t)> peak_bytes;      // makes a plan
  std::function<double(size_t)> time_us;
  /// Whether expected peaks may be far off, as for other shapes. The peaks that plans show then
  /// correct them, so that few plans are made: another one only if it saves kLeastSaving. A
  /// candidate that fits may be passed over.
  bool rough = false;
};

/// Position of the fastest candidate that fits, or 0 if none does. A binary search over the
/// expected peaks gives the start. Where they are not rough, a larger budget never ends earlier.
size_t fastest_that_fits(const BudgetCandidates& candidates, int64_t budget_bytes);

/// Fills `chosen`, `minimum_bytes`, `fits`, `frontier` and `grown` of `choice`. The candidates do
/// not depend on the budget, and dominated ones are dropped, so a larger budget is never slower and
/// a smaller one never has a higher peak. If there are few combinations, all are candidates. If
/// none fits, the one with the lowest peak is chosen.
void choose_for_budget(MemoryChoice& choice, int64_t budget_bytes, const Evaluate& evaluate);

}  // namespace ortmodule
