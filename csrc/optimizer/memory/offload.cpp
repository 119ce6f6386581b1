#include "optimizer/memory/offload.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "plan/pack.h"

namespace ortmodule {
namespace {

using Chosen = std::vector<std::optional<Strategy>>;

/// Bytes that the stash, which may be offloaded, takes on the host.
int64_t host_bytes_of(const Stash& stash, const SymbolValues& sizes) {
  int64_t bytes = 0;
  for (const Value* value : subgraph_of(stash, Strategy::Offload)->moved)
    bytes += align_up(bytes_of(*value).evaluate(sizes));
  return bytes;
}

/// The stashes that may be offloaded, dearest first, those of equal prices in program order.
std::vector<size_t> by_price(const MemoryChoice& choice, const std::vector<double>& prices) {
  // As 1/n of the stashes: backward reads the last ones before a copy could come back.
  constexpr size_t kLastStashes = 12;
  const size_t end = choice.stashes.size() - choice.stashes.size() / kLastStashes;
  std::vector<size_t> order;
  for (size_t s = 0; s < end; ++s)
    if (subgraph_of(choice.stashes[s], Strategy::Offload)) order.push_back(s);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return prices[a] > prices[b]; });
  return order;
}

}  // namespace

void offer_offload(MemoryChoice& choice, const MachineRates& rates, const SymbolValues& sizes) {
  // Backward takes about twice as long as forward, so its copies have time enough.
  choice.link_bytes = static_cast<int64_t>(choice.before.time_us / 3 * rates.to_host_bytes_per_us);
  const auto least_bytes =
      std::max<int64_t>(static_cast<int64_t>(rates.host_copy_us * rates.to_host_bytes_per_us), 1);
  for (Stash& stash : choice.stashes) {
    RecomputeSubgraph offloaded;
    offloaded.strategy = Strategy::Offload;
    offloaded.cluster_id = stash.node->op + "+";
    for (const Value* value : stash.values) {
      if (bytes_of(*value).evaluate(sizes) < least_bytes) continue;
      offloaded.moved.push_back(value);
      offloaded.saving_bytes = offloaded.saving_bytes + bytes_of(*value);
    }
    if (!offloaded.moved.empty()) stash.subgraphs.push_back(std::move(offloaded));
  }
}

std::vector<Chosen> offload_candidates(const MemoryChoice& choice,
                                       const std::vector<double>& prices) {
  const std::vector<size_t> order = by_price(choice, prices);
  std::vector<int64_t> bytes;
  for (size_t s : order) bytes.push_back(host_bytes_of(choice.stashes[s], choice.sizes));
  const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  const int64_t most = std::min(all, choice.host_budget_bytes.value_or(all));
  // By parts of what can be copied beside the steps. Recomputation makes more time for copies, and
  // the plans tell whether it is enough. All of it, however slow, may have the lowest peak.
  constexpr std::array kParts = {0.25, 0.5, 0.75, 1.0, 1.3};
  std::vector<int64_t> limits;
  for (double part : kParts)
    limits.push_back(
        std::min(most, static_cast<int64_t>(part * static_cast<double>(choice.link_bytes))));
  limits.push_back(most);
  std::vector<Chosen> sets;
  for (int64_t limit : limits) {
    Chosen chosen(choice.stashes.size());
    int64_t sum = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      if (sum + bytes[i] > limit) continue;
      sum += bytes[i];
      chosen[order[i]] = Strategy::Offload;
    }
    if (sum > 0 && (sets.empty() || chosen != sets.back())) sets.push_back(std::move(chosen));
  }
  return sets;
}

void keep_within_host_budget(MemoryChoice& choice, const SymbolValues& sizes) {
  if (!choice.host_budget_bytes) return;
  int64_t sum = 0, kept = 0;
  for (size_t s = 0; s < choice.stashes.size(); ++s) {
    if (choice.chosen[s] != Strategy::Offload) continue;
    const int64_t bytes = host_bytes_of(choice.stashes[s], sizes);
    if (sum + bytes <= *choice.host_budget_bytes) {
      sum += bytes;
      continue;
    }
    choice.chosen[s].reset();
    kept += bytes;
  }
  if (kept > 0)
    choice.warnings.push_back(str("the configuration keeps ", sum + kept,
                                  " bytes on the host, where ORTMODULE_OFFLOAD_BUDGET allows ",
                                  *choice.host_budget_bytes, "; ", kept,
                                  " of them stay on the GPU; set a larger one to move them"));
}

}  // namespace ortmodule
