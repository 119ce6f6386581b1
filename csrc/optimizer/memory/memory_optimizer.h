// Chooses which saved activations (stashes) backward recomputes or fetches from the host: by
// configuration, by level, or by a budget in bytes.
#pragma once

#include <array>
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

/// The user's options of the memory optimizer. A budget and a level above 0 exclude each other.
/// With a budget, configuration elements of strategy 0 forbid their cluster; others are ignored.
struct MemoryOptions {
  int level = 0;
  std::vector<ConfigElement> config;
  std::optional<int64_t> budget_bytes;    // of Plan::peak_bytes
  std::optional<double> budget_fraction;  // of the peak without the optimizer
  /// Bytes of the user's budget that `budget_bytes` leaves out, for messages: parameters, buffers
  /// and optimizer state.
  int64_t reserved_bytes = 0;
  /// Values may be kept in memory of the host, at most so many bytes of them; not set: no limit.
  /// Only configurations and budgets do this.
  bool offload = false;
  std::optional<int64_t> host_budget_bytes;
  MachineRates rates;
  bool strict =
      false;  // exceeding the budget with a later, larger shape is an error, not a warning
  /// Another capture of the module trained before: the first shape of this one counts as a later
  /// shape, too.
  bool mid_training = false;
  /// The memory of parameters is freed between forward and backward (FSDP2): no value that is
  /// computed from parameters alone is saved for backward.
  bool gathered_parameters = false;
  /// Runs of this piece or of others of its kind that save activations at the same time: a level
  /// weighs the saved bytes of all of them against time, not only the peak of one run.
  int64_t other_runs = 0;
  bool asked() const { return level > 0 || !config.empty() || budget_bytes || budget_fraction; }
};

/// This piece's share of a budget in bytes, where graph breaks cut the forward into pieces.
struct BudgetShare {
  int64_t others_bytes = 0;  // held by the other pieces while this one runs
  /// For shapes other than the first, each piece's share may grow by this factor.
  double growth = 1.0;
  /// If the first shape does not fit, take the plan with the lowest peak without a warning: the
  /// needs of the other pieces are not known yet.
  bool lenient = false;
};

/// The growths of a shape at which the peaks of candidates are compared.
inline constexpr std::array<double, 8> kGrowths = {0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0};

/// Cost of a set of decisions, measured on the execution plan that they lead to.
struct PlanFigures {
  int64_t peak_bytes = 0;
  int64_t accumulating_peak_bytes = 0;  // of a step that accumulates into existing gradients
  int64_t saved_bytes = 0;              // of saved activations
  double time_us = 0;                   // estimated time of a step
  int64_t host_bytes = 0;               // of saved activations in memory of the host
  /// The expected peaks where everything but gradients takes kGrowths times as many bytes.
  std::array<int64_t, kGrowths.size()> grown_peak_bytes = {};
};

/// The expected peak where everything but gradients takes `growth` times as many bytes.
double grown_peak(const PlanFigures& figures, double growth);

/// Makes the execution plan of the module with these decisions and returns its cost.
using Evaluate = std::function<PlanFigures(const MemoryDecisions&)>;

/// A row of the user's table: all occurrences of one cluster id and strategy.
struct ClusterRow {
  std::string cluster_id;
  Strategy strategy = Strategy::Recompute;
  std::vector<size_t> stashes;  // positions among MemoryChoice::stashes
  size_t applied = 0;
  DimExpr saving_bytes;
  std::string reason;  // why a level or budget does not recompute it
};

/// A set of decisions on the Pareto frontier of peak and time, from which a budget chooses.
struct FrontierPoint {
  MemoryDecisions decisions;
  PlanFigures figures;  // for the first shapes; some are interpolated
};

/// What is recomputed, and the facts that it was chosen by.
struct MemoryChoice {
  SymbolValues sizes;  // of the shapes that it was chosen for
  std::vector<Stash> stashes;
  std::vector<std::optional<Strategy>> chosen;  // by stash; nullopt: kept
  std::vector<ClusterRow> rows;                 // largest saving first
  Layers layers;
  MemoryDecisions decisions;
  PlanFigures before, after;
  std::optional<PlanFigures> on_device;  // with a budget: what it would take without the host
  std::vector<FrontierPoint> frontier;   // with a budget: peak ascends, time descends
  std::vector<FrontierPoint> grown;      // on the frontier of smaller or larger shapes alone
  std::vector<std::string> warnings;
  bool keep_boundaries = false;              // keep the values that cross layer boundaries
  std::optional<int64_t> host_budget_bytes;  // as in MemoryOptions
  int64_t link_bytes = 0;                    // that can be copied to the host while forward runs
  int64_t minimum_bytes = 0;                 // with a budget: the lowest reachable peak
  bool fits = true;                          // `minimum_bytes` is within the budget
};

/// The decisions that treat exactly the stashes in `chosen` so (by stash; nullopt: kept).
MemoryDecisions decisions_of(const MemoryChoice& choice,
                             const std::vector<std::optional<Strategy>>& chosen);

/// Sets `chosen`, `decisions` and the rows of `choice` to `decisions`, which concern its stashes.
void apply_decisions(MemoryChoice& choice, const MemoryDecisions& decisions);

/// Chooses what to recompute for the shapes given by `sizes`.
MemoryChoice choose_memory_plan(const Graph& joint, const MemoryOptions& options,
                                const BudgetShare& share, const SymbolValues& sizes,
                                const Evaluate& evaluate);

/// This piece's limit of Plan::peak_bytes, or nullopt without a budget. `peak_bytes` is the peak
/// without the optimizer.
std::optional<int64_t> budget_of(const MemoryOptions& options, const BudgetShare& share,
                                 int64_t peak_bytes);

/// A step that does not fit its budget with any plan.
struct BudgetShortfall {
  int64_t budget_bytes = 0;  // without `MemoryOptions::reserved_bytes`
  int64_t step_bytes = 0;    // the lowest peak; of a step of several pieces, that of their plans
  bool has_pieces = false;   // graph breaks cut the step into pieces
};

/// The message about it, with the numbers of the user's own budget.
std::string over_budget_text(const MemoryOptions& options, const BudgetShortfall& found);

}  // namespace ortmodule
