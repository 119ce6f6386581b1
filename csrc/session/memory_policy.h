// Decides what each plan of a session recomputes, for a memory budget or level.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "session/planner.h"

namespace ortmodule {

/// Optimizes memory for the first shapes; other shapes reuse that choice if they can. Not
/// thread-safe.
class MemoryPolicy {
 public:
  /// The arguments must outlive the policy.
  MemoryPolicy(const Graph& joint, const SessionOptions& options, Planner& planner,
               StageTimes& times);

  /// What to recompute for the shapes of `asked`.
  MemoryDecisions decide(const Signature& asked);
  /// Sets how much of a budget in bytes other pieces use. A change discards all plans.
  void set_budget_share(const BudgetShare& share);
  const BudgetShare& budget_share() const { return share_; }
  /// From now on figures and budgets include the gradients of earlier steps, which are accumulated
  /// into.
  void assume_accumulation();
  /// From now on figures and budgets include gradients of gradients, whose passes take `bytes` at
  /// these sizes beside what forward has saved. Only the first call counts: each changes all plans.
  void assume_derived(const SymbolValues& sizes, int64_t bytes);

  /// Whether a run exceeded its planned peak by enough to call observe_peak().
  static bool exceeds_plan(int64_t planned_bytes, int64_t measured_bytes);
  /// Marks the plan of a run that exceeded its peak as outdated, and warns.
  void observe_peak(PlanEntry& entry, int64_t planned_bytes, int64_t measured_bytes);
  /// Optimizes again for the first shapes, after something changed the peaks of plans.
  void choose_again();
  /// Warnings about memory since the last call.
  std::vector<std::string> take_warnings();
  /// The last shapes since the last call for which no plan fits the budget, if there are any.
  std::optional<BudgetShortfall> take_shortfall();

  /// The choice for the first shapes; null before the first forward and without training. Computed
  /// on demand if no memory optimization was asked for. The object never changes; a later choice is
  /// a new one.
  std::shared_ptr<const MemoryChoice> choice();
  /// How often a choice was searched for, which takes as long as many plans.
  int searches() const { return searches_; }
  /// The same for the shapes of `entry`: what it recomputes, with figures for its shapes.
  MemoryChoice choice_in(const PlanEntry& entry);
  /// Peak and time with these decisions, for `shapes` or the first ones.
  PlanFigures figures_of(const MemoryDecisions& decisions, const Signature* shapes = nullptr);
  /// The plan with these decisions, for `shapes` or the first ones.
  std::shared_ptr<const Plan> plan_with(const MemoryDecisions& decisions,
                                        const Signature* shapes = nullptr);

 private:
  /// Sets `choice_` to the one for `asked`.
  void choose(const Signature& asked);
  std::shared_ptr<const MemoryChoice> chosen_for(const Signature& asked);
  PlanFigures figures_with(const MemoryDecisions& decisions, const Signature& asked);
  /// The same without what only a search needs: the time and the peaks of other shapes.
  PlanFigures bytes_with(const MemoryDecisions& decisions, const Signature& asked);
  /// Whether the plan with these decisions keeps no more on the host than it may.
  bool fits_host(const MemoryDecisions& decisions, const Signature& asked);
  /// The fastest decisions within `budget_bytes`, for shapes other than the first.
  MemoryDecisions fit_to_budget(const Signature& asked, int64_t budget_bytes);
  /// What a search found for other shapes than its own: the fastest decisions that fit, or those
  /// with the lowest peak.
  struct Fit {
    const MemoryDecisions* decisions = nullptr;
    int64_t peak_bytes = 0;
  };
  struct Searched {
    std::shared_ptr<const MemoryChoice> choice;
    double error = 1.0;  // of the peaks that it expects for other shapes: true over expected
  };
  Fit fit_with(Searched& searched, const Signature& asked, int64_t budget_bytes);
  /// How many times the bytes of the choice's own shapes `asked` takes, but for gradients.
  double growth_from(const MemoryChoice& choice, const Signature& asked) const;
  /// Where no plan fits the budget: `decisions`, which have the lowest peak, or, if `fatal`, an
  /// error.
  MemoryDecisions lowest_peak_of(const MemoryDecisions& decisions, int64_t least_bytes,
                                 int64_t budget_bytes, bool fatal);
  /// Whether the shapes are so much larger than the first that a level must optimize again for
  /// them.
  bool is_outgrown_by(const Signature& asked) const;
  /// Bytes of all activations that forward may save.
  int64_t stash_bytes(const SymbolValues& sizes) const;
  const Signature& shapes_or_first(const Signature* shapes) const;
  /// Bytes that gradients of gradients take beside what forward has saved; 0 if there are none.
  int64_t derived_bytes(const SymbolValues& sizes) const;

  const Graph& joint_;
  const SessionOptions& options_;
  Planner& planner_;
  StageTimes& times_;
  std::shared_ptr<const MemoryChoice> choice_;  // immutable; replaced by a new choice
  std::optional<Signature> first_;              // or later ones that have outgrown them
  BudgetShare share_;
  /// What later shapes choose from: `choice_`, and what was last searched for another shape.
  std::vector<Searched> searched_;
  /// What optimizing for other shapes than the first last did to their lowest peak, where that did
  /// not fit the budget: new over old.
  double search_gain_ = 0.0;
  int searches_ = 0;  // of choices, over all shapes
  bool accumulates_ = false;
  /// Of the gradients of gradients that ran: the sizes and the bytes.
  std::optional<std::pair<SymbolValues, int64_t>> derived_;
  int corrections_ = 0;  // outdated plans: libraries allocated more than they declare
  std::vector<std::string> warnings_;
  std::optional<BudgetShortfall> shortfall_;
};

}  // namespace ortmodule
