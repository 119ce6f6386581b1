// Which values the plans of a session recompute, shape by shape, within a budget or level.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "session/planner.h"

namespace ortmodule {

/// Chooses for the first shape, and from that choice for the others. Not thread-safe.
class MemoryPolicy {
 public:
  /// What is passed must outlive the policy.
  MemoryPolicy(const Graph& joint, const SessionOptions& options, Planner& planner,
               StageTimes& times);

  /// What to recompute for the shapes of `asked`.
  MemoryDecisions decide(const Signature& asked);
  /// Sets the part of a budget in bytes that other pieces hold. All is planned anew if it changed.
  void set_budget_share(const BudgetShare& share);
  /// From now on gradients of earlier steps lie beside a step: figures and budgets count them.
  void assume_accumulation();

  /// Whether a run took so much more than planned that it is to be observed.
  static bool exceeds_plan(int64_t planned_bytes, int64_t measured_bytes);
  /// Lets a run that exceeded its plan be followed by a new plan, and warns.
  void observe_peak(PlanEntry& entry, int64_t planned_bytes, int64_t measured_bytes);
  /// Chooses anew for the first shape, since plans of the same decisions now have other peaks.
  void choose_again();
  /// What was said about the memory of new shapes, and of runs, since the last call.
  std::vector<std::string> take_warnings();

  /// What was found and chosen for the first shape; null before it and without training. Computed
  /// on demand if no memory was to be saved. A later choice does not change this one.
  std::shared_ptr<const MemoryChoice> choice();
  /// The same for the shapes of `entry`: what it recomputes, and what that costs there.
  MemoryChoice choice_in(const PlanEntry& entry);
  /// The peak and time that these decisions lead to, for `shapes` or the first ones.
  PlanFigures figures_of(const MemoryDecisions& decisions, const Signature* shapes = nullptr);
  /// The plan that these decisions lead to, for `shapes` or the first ones.
  std::shared_ptr<const Plan> plan_with(const MemoryDecisions& decisions,
                                        const Signature* shapes = nullptr);

 private:
  std::shared_ptr<const MemoryChoice> chosen_for(const Signature& asked);
  PlanFigures figures_with(const MemoryDecisions& decisions, const Signature& asked);
  /// The fastest decisions that keep `budget_bytes` in shapes other than the first.
  MemoryDecisions fit_to_budget(const Signature& asked, int64_t budget_bytes);
  /// The decisions of a shape that no plan fits: an error, or the least plan with a warning.
  MemoryDecisions least_of(const MemoryChoice& choice, int64_t budget_bytes, bool fatal);
  /// Whether a level is to be chosen anew: what a small batch recomputes says little about a large
  /// one.
  bool is_outgrown_by(const Signature& asked) const;
  /// Bytes of everything that forward could keep for backward.
  int64_t stash_bytes(const SymbolValues& sizes) const;
  const Signature& shapes_or_first(const Signature* shapes) const;

  const Graph& joint_;
  const SessionOptions& options_;
  Planner& planner_;
  StageTimes& times_;
  std::shared_ptr<const MemoryChoice> choice_;  // replaced, never changed
  std::optional<Signature> first_;              // or a later one, which outgrew it
  BudgetShare share_;
  bool accumulates_ = false;
  int corrections_ = 0;  // plans made anew since libraries took more than they had declared
  std::vector<std::string> warnings_;
};

}  // namespace ortmodule
