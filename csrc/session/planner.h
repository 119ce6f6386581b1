// Lowered graphs and plans of a session, made once and kept.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lower/lower.h"
#include "runtime/program.h"
#include "session/plan_cache.h"
#include "session/plan_key.h"
#include "session/session_options.h"
#include "session/stage_times.h"

namespace ortmodule {

/// A plan ready to run, and its variants for fewer output gradients.
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
  /// By arrived gradients and whether saved values must stay.
  std::map<std::pair<std::vector<bool>, bool>, std::unique_ptr<Program>> backward;
  /// Libraries took more than the plan reckons with: the next run plans anew.
  std::atomic<bool> outdated = false;
};

/// Not thread-safe.
class Planner {
 public:
  /// What is passed by reference must outlive the planner.
  Planner(const Graph& joint, std::shared_ptr<const Lowered> lowered, const SessionOptions& options,
          StageTimes& times);

  /// Lowered without recomputation.
  const Lowered& lowered() const { return *lowered_; }

  /// The entry that was found or made last, if `is_key` says yes to its key and it is not outdated;
  /// else null. Allocates nothing.
  template <class Predicate>
  std::shared_ptr<PlanEntry> latest(const Predicate& is_key) const {
    std::shared_ptr<PlanEntry> entry = plans_.latest(is_key);
    return entry && !entry->outdated ? entry : nullptr;
  }
  /// Null if there is none. It may be outdated.
  std::shared_ptr<PlanEntry> find(const PlanKey& key) { return plans_.find(key); }
  void erase(const PlanKey& key) { plans_.erase(key); }
  /// Makes the entry of a signature that has none.
  std::shared_ptr<PlanEntry> make(const MemoryDecisions& decisions, Signature signature);
  /// The program whose backward part serves exactly the `arrived` output gradients, which may be
  /// `all`; with `keep_saved` it can run again (retain_graph).
  const Program& backward_program(PlanEntry& entry, const std::vector<bool>& arrived, bool all,
                                  bool keep_saved);

  /// A plan to compare with others. The last few are remembered, as one of them is taken.
  std::shared_ptr<const Plan> compared(const MemoryDecisions& decisions,
                                       const Signature& signature);
  /// A plan to show.
  std::shared_ptr<const Plan> shown(const MemoryDecisions& decisions, const Signature& signature);

  /// To be called where libraries were found to take more, so that equal plans differ.
  void forget_compared() { compared_.clear(); }
  /// Makes all plans anew.
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
  std::shared_ptr<const Lowered> lowered_;
  std::vector<std::pair<MemoryDecisions, std::shared_ptr<const Lowered>>> recomputing_;
  std::vector<Compared> compared_;
  PlanCache<PlanKey, PlanEntry> plans_;
};

}  // namespace ortmodule
