// Makes and caches the lowered graphs and plans of a session.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lower/lower.h"
#include "lower/packed_lowered.h"
#include "runtime/program.h"
#include "session/plan_cache.h"
#include "session/plan_key.h"
#include "session/session_options.h"
#include "session/stage_times.h"

namespace ortmodule {

/// A plan ready to run, and its backward variants.
struct PlanEntry {
  PlanEntry(std::shared_ptr<const Plan> plan, std::shared_ptr<const Lowered> from, Signature asked,
            MemoryDecisions decided)
      : program(std::move(plan)),
        lowered(std::move(from)),
        signature(std::move(asked)),
        decisions(std::move(decided)) {}
  Program program;
  std::shared_ptr<const Lowered> lowered;
  Signature signature;
  MemoryDecisions decisions;
  /// Variants by the output gradients that arrive, and by whether backward can run again.
  std::map<std::pair<std::vector<bool>, bool>, std::unique_ptr<Program>> backward;
  /// Libraries allocated more than the plan assumes: the next run makes a new plan.
  std::atomic<bool> outdated = false;
};

/// Not thread-safe.
class Planner {
 public:
  /// Arguments passed by reference must outlive the planner.
  Planner(const Graph& joint, std::shared_ptr<const Lowered> lowered, const SessionOptions& options,
          StageTimes& times);

  /// Lowered without recomputation.
  const std::shared_ptr<const Lowered>& lowered();
  /// Bytes of its graph, about.
  int64_t lowered_bytes() const;
  /// Packs the lowered graph until it is read again, if no plan needs it. Only of graphs that do
  /// not train.
  void pack();

  /// The most recently used entry, if `is_key` is true for its key and it is not outdated; else
  /// null. Does not allocate.
  template <class Predicate>
  std::shared_ptr<PlanEntry> latest(const Predicate& is_key) const {
    std::shared_ptr<PlanEntry> entry = plans_.latest(is_key);
    return entry && !entry->outdated ? entry : nullptr;
  }
  /// The entry of that key, which may be outdated; null if there is none.
  std::shared_ptr<PlanEntry> find(const PlanKey& key) { return plans_.find(key); }
  void erase(const PlanKey& key) { plans_.erase(key); }
  /// Makes the entry of a new signature.
  std::shared_ptr<PlanEntry> make(const MemoryDecisions& decisions, Signature signature);
  /// The program whose backward pass takes exactly the `arrived` output gradients (`all`: all of
  /// them); with `keep_saved` it can run again (retain_graph).
  const Program& backward_program(PlanEntry& entry, const std::vector<bool>& arrived, bool all,
                                  bool keep_saved);

  /// Whether the lowered graph of these decisions is cached; otherwise it takes longer than a plan.
  bool is_lowered(const MemoryDecisions& decisions) const;
  /// A plan to compare with others. The last few are cached, since one of them will be used.
  std::shared_ptr<const Plan> compared(const MemoryDecisions& decisions,
                                       const Signature& signature);
  /// A plan for reports, not cached.
  std::shared_ptr<const Plan> shown(const MemoryDecisions& decisions, const Signature& signature);

  /// To be called when libraries turn out to allocate more, which changes the plans.
  void forget_compared() { compared_.clear(); }
  /// Keeps the most recently used plans that fit in `bytes`; returns what they take, about.
  int64_t shrink(int64_t bytes);
  /// Discards all plans.
  void forget_all();

 private:
  std::shared_ptr<const Lowered> lowered_for(const MemoryDecisions& decisions);

  struct Compared {
    MemoryDecisions decisions;
    PlanKey key;
    std::shared_ptr<const Plan> plan;
  };

  const Graph& joint_;
  const SessionOptions& options_;
  StageTimes& times_;
  std::shared_ptr<const Lowered> lowered_;  // null while it is packed
  std::optional<PackedLowered> packed_;
  /// The most recently used one comes last.
  std::vector<std::pair<MemoryDecisions, std::shared_ptr<const Lowered>>> recomputing_;
  std::vector<Compared> compared_;
  std::weak_ptr<const Plan> last_;  // that was made
  PlanCache<PlanKey, PlanEntry> plans_;
};

}  // namespace ortmodule
