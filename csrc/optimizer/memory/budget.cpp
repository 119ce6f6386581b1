#include "optimizer/memory/budget.h"

#include <algorithm>
#include <unordered_set>

#include "ops/op_def.h"

namespace ortmodule {
namespace {

using Chosen = std::vector<std::optional<Strategy>>;

struct Candidate {
  Chosen chosen;
  PlanFigures figures;
};

/// A stash with what recomputing it would free and cost, alone.
struct Unit {
  size_t stash = 0;
  size_t row = 0;
  double cost_per_byte = 0;
};

class BudgetChooser {
 public:
  BudgetChooser(MemoryChoice& choice, const Evaluate& evaluate)
      : choice_(choice), evaluate_(evaluate) {}

  std::vector<Candidate> frontier() {
    rank_units();
    add(Chosen(choice_.stashes.size()));
    add_prefixes();
    add(level_candidates(choice_, 1));
    add(level_candidates(choice_, 2));
    add_sparser_boundaries();
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) {
                       return a.figures.peak_bytes < b.figures.peak_bytes;
                     });
    std::vector<Candidate> best;  // peak ascends, time descends
    for (Candidate& candidate : candidates_) {
      if (!best.empty() && candidate.figures.time_us >= best.back().figures.time_us) continue;
      best.push_back(std::move(candidate));
    }
    return best;
  }

 private:
  static constexpr size_t kPrefixes = 32;

  void add(Chosen chosen) {
    const PlanFigures figures = evaluate_(decisions_of(choice_, chosen));
    candidates_.push_back({std::move(chosen), figures});
  }

  // The time of a row is measured on the whole row: what a clone shares with others of its kind
  // and with backward's own pointwise groups is then in the figure.
  void rank_units() {
    const std::vector<bool> boundary = boundary_stashes(choice_);
    for (size_t r = 0; r < choice_.rows.size(); ++r) {
      const PlanRow& row = choice_.rows[r];
      Chosen alone(choice_.stashes.size());
      std::vector<size_t> members;
      for (size_t s : row.stashes) {
        if (boundary[s] || !has_plan(s, row.strategy)) continue;
        alone[s] = row.strategy;
        members.push_back(s);
      }
      if (members.empty()) continue;
      const PlanFigures figures = evaluate_(decisions_of(choice_, alone));
      const int64_t freed = choice_.before.saved_bytes - figures.saved_bytes;
      if (freed <= 0) continue;
      const double cost = std::max(figures.time_us - choice_.before.time_us, 0.0);
      for (size_t s : members) units_.push_back({s, r, cost / static_cast<double>(freed)});
    }
    // Cheapest first; of one row the first layers first, since backward reaches them last, when
    // little else is left.
    std::stable_sort(units_.begin(), units_.end(), [](const Unit& a, const Unit& b) {
      return a.cost_per_byte < b.cost_per_byte;
    });
  }

  bool has_plan(size_t stash, Strategy strategy) const {
    for (const RecomputePlan& plan : choice_.stashes[stash].plans)
      if (plan.strategy == strategy) return true;
    return false;
  }

  void add_prefixes() {
    Chosen chosen(choice_.stashes.size());
    const size_t step = std::max<size_t>(units_.size() / kPrefixes, 1);
    for (size_t i = 0; i < units_.size(); ++i) {
      if (!chosen[units_[i].stash]) chosen[units_[i].stash] = strategy_of(units_[i]);
      const bool row_ends = i + 1 == units_.size() || units_[i + 1].row != units_[i].row;
      if ((i + 1) % step == 0 || row_ends) add(chosen);
    }
  }

  Strategy strategy_of(const Unit& unit) const { return choice_.rows[unit.row].strategy; }

  // Below one value per layer: every second, third ... layer keeps its operand.
  void add_sparser_boundaries() {
    const std::vector<bool> boundary = boundary_stashes(choice_);
    Chosen all(choice_.stashes.size());
    for (const Unit& unit : units_) all[unit.stash] = strategy_of(unit);
    for (size_t stride = 2; stride <= 6; ++stride) {
      Chosen chosen = all;
      size_t at = 0;
      bool any = false;
      for (size_t s = 0; s < chosen.size(); ++s) {
        if (!boundary[s]) continue;
        if (++at % stride == 0 || !has_plan(s, Strategy::Recompute)) continue;
        chosen[s] = Strategy::Recompute;
        any = true;
      }
      if (any) add(std::move(chosen));
    }
  }

  MemoryChoice& choice_;
  const Evaluate& evaluate_;
  std::vector<Unit> units_;
  std::vector<Candidate> candidates_;
};

}  // namespace

std::vector<bool> boundary_stashes(const MemoryChoice& choice) {
  std::unordered_set<const Value*> values;
  for (const LayerGroup& group : choice.layers.groups)
    values.insert(group.boundaries.begin(), group.boundaries.end());
  std::vector<bool> result(choice.stashes.size(), false);
  for (size_t s = 0; s < choice.stashes.size(); ++s)
    for (const Value* value : choice.stashes[s].values)
      result[s] = result[s] || values.contains(value);
  return result;
}

std::pair<Chosen, PlanFigures> least_peak(MemoryChoice& choice, const Evaluate& evaluate) {
  std::vector<Candidate> frontier = BudgetChooser(choice, evaluate).frontier();
  return {std::move(frontier.front().chosen), frontier.front().figures};
}

void choose_for_budget(MemoryChoice& choice, int64_t budget_bytes, const Evaluate& evaluate) {
  const std::vector<Candidate> frontier = BudgetChooser(choice, evaluate).frontier();
  choice.minimum_bytes = frontier.front().figures.peak_bytes;
  choice.fits = choice.minimum_bytes <= budget_bytes;
  const Candidate* taken = &frontier.front();
  for (const Candidate& candidate : frontier)
    if (candidate.figures.peak_bytes <= budget_bytes) taken = &candidate;
  choice.chosen = taken->chosen;
  choice.frontier.clear();
  for (const Candidate& candidate : frontier)
    choice.frontier.push_back(decisions_of(choice, candidate.chosen));
}

}  // namespace ortmodule
