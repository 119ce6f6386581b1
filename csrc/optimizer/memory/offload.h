// Keeping saved activations in memory of the host, as a third way beside recomputing them and
// keeping them narrower.
#pragma once

#include <optional>
#include <vector>

#include "optimizer/memory/memory_optimizer.h"

namespace ortmodule {

/// Adds a subgraph of strategy Offload to each stash that is large enough for a copy to take longer
/// than its overhead.
void offer_offload(MemoryChoice& choice, const MachineRates& rates, const SymbolValues& sizes);

/// Sets of stashes to offload, from which a budget goes on by recomputing. `prices` is by stash:
/// the time per byte that recomputing it costs. The dearest go first, in all layers but the last
/// ones, whose values backward needs at once. The sets differ in the part of a step during which
/// the link is busy. Empty if nothing can be offloaded.
std::vector<std::vector<std::optional<Strategy>>> offload_candidates(
    const MemoryChoice& choice, const std::vector<double>& prices);

/// Keeps on the device what exceeds the host's budget, last stashes first, with a warning.
void keep_within_host_budget(MemoryChoice& choice, const SymbolValues& sizes);

}  // namespace ortmodule
