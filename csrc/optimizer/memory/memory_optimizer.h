// Which stashes a module recomputes: by configuration, by level, or by a budget in bytes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/machine_rates.h"
#include "optimizer/memory/layers.h"
#include "optimizer/memory/stashes.h"

namespace ortmodule {

/// One element of a configuration: `cluster_id:strategy:count`.
struct ConfigElement {
  std::string cluster_id;
  Strategy strategy = Strategy::Recompute;
  int64_t count = -1;  // the first `count` occurrences in program order; -1: all
};

/// What the user asked of the memory optimizer. A budget excludes a level above 0; with one, only
/// elements of strategy 0 mean anything: they forbid.
struct MemoryOptions {
  int level = 0;
  std::vector<ConfigElement> config;
  std::optional<int64_t> budget_bytes;    // of Plan::peak_bytes
  std::optional<double> budget_fraction;  // of the peak without the optimizer
  /// What the user's budget holds besides `budget_bytes`, for messages: parameters, buffers and
  /// optimizer state.
  int64_t reserved_bytes = 0;
  MachineRates rates;
  bool strict = false;  // a later, larger shape that does not fit is an error, not a warning
  /// Other captures of the module trained before this one: its first shape is a later one, too.
  bool mid_training = false;
  bool asked() const { return level > 0 || !config.empty() || budget_bytes || budget_fraction; }
};

/// What other pieces of the forward, between graph breaks, take of a budget in bytes.
struct BudgetShare {
  int64_t others_bytes = 0;  // what they hold while this piece runs
  /// For other shapes than the first, the part of each piece may be so many times as large.
  double growth = 1.0;
  /// A first shape that does not fit takes its least plan without a warning, until it is known what
  /// all pieces need.
  bool lenient = false;
};

/// What a set of decisions costs, by the plan that it leads to.
struct PlanFigures {
  int64_t peak_bytes = 0;
  int64_t accumulating_peak_bytes = 0;  // with gradients handed over as they are made
  int64_t saved_bytes = 0;
  int64_t gradients_at_peak_bytes = 0;  // the part of the peak that no shape changes
  double time_us = 0;
};
using Evaluate = std::function<PlanFigures(const MemoryDecisions&)>;

/// All occurrences of one cluster id and strategy.
struct PlanRow {
  std::string cluster_id;
  Strategy strategy = Strategy::Recompute;
  std::vector<size_t> stashes;  // positions among MemoryChoice::stashes
  size_t applied = 0;
  DimExpr saving_bytes;
  std::string reason;  // why a level or budget left it off
};

/// One of the plans that a budget chooses among.
struct FrontierPlan {
  MemoryDecisions decisions;
  PlanFigures figures;  // for the first shapes, some interpolated
};

struct MemoryChoice {
  SymbolValues sizes;  // of the shapes that it was chosen for
  std::vector<Stash> stashes;
  std::vector<std::optional<Strategy>> chosen;  // by stash; nothing: kept
  std::vector<PlanRow> rows;                    // largest saving first
  Layers layers;
  MemoryDecisions decisions;
  PlanFigures before, after;
  std::vector<FrontierPlan> frontier;  // of a budget: peak ascends, time descends
  std::vector<std::string> warnings;
  bool keep_boundaries = false;
  int64_t minimum_bytes = 0;  // least reachable peak, if a budget was given
  bool fits = true;           // the budget is kept
};

/// The decisions that `choice` stands for if exactly `chosen` is recomputed.
MemoryDecisions decisions_of(const MemoryChoice& choice,
                             const std::vector<std::optional<Strategy>>& chosen);

/// Makes `choice` say what `decisions`, made of its stashes, recompute.
void apply_decisions(MemoryChoice& choice, const MemoryDecisions& decisions);

/// Chooses for one signature of shapes. `evaluate` plans the module with given decisions.
MemoryChoice choose_memory_plan(const Graph& joint, const MemoryOptions& options,
                                const BudgetShare& share, const SymbolValues& sizes,
                                const Evaluate& evaluate);

/// This piece's budget in bytes of Plan::peak_bytes, given the peak without the optimizer; nothing
/// if there is no budget.
std::optional<int64_t> budget_of(const MemoryOptions& options, const BudgetShare& share,
                                 int64_t peak_bytes);

/// Why `peak_bytes`, the least that a module reaches for some shapes, breaks the budget.
std::string over_budget_text(const MemoryOptions& options, const BudgetShare& share,
                             int64_t budget_bytes, int64_t peak_bytes);

}  // namespace ortmodule
