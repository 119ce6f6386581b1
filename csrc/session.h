// The program in one class: a captured piece becomes a graph, a joint graph, lowered steps, plans.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exporter/graph_builder.h"
#include "optimizer/memory/memory_optimizer.h"
#include "optimizer/pipeline.h"
#include "plan/make_plan.h"
#include "session/plan_cache.h"
#include "runtime/program.h"

namespace ortmodule {

struct SessionOptions {
  Device device = Device::CPU;
  bool training = true;  // false: forward only, nothing is saved
  OptimizerOptions optimizer;
  MemoryOptions memory;
  int64_t plan_cache_bytes = int64_t{64} << 20;  // see plans_within
  /// Called before a plan is made; throws where none can be.
  std::function<void()> before_plan = {};
};

/// Milliseconds per stage of building the session and its plans.
struct StageTimes {
  double optimize_forward_ms = 0;
  double gradient_ms = 0;
  double optimize_joint_ms = 0;
  double lower_ms = 0;
  double optimize_memory_ms = 0;  // choosing what is recomputed
  double plan_ms = 0;             // sum over all plans
};

/// A plan ready to run, and its variants for fewer output gradients.
struct PlanEntry {
  PlanEntry(std::shared_ptr<const Plan> plan, std::shared_ptr<const Lowered> from,
            PlanRequest asked)
      : program(std::move(plan)), lowered(std::move(from)), request(std::move(asked)) {}
  Program program;
  std::shared_ptr<const Lowered> lowered;
  PlanRequest request;
  MemoryDecisions decisions = {};
  /// By arrived gradients and whether saved values must stay.
  std::map<std::pair<std::vector<bool>, bool>, std::unique_ptr<Program>> backward;
  /// Libraries took more than the plan reckons with: the next run plans anew.
  std::atomic<bool> outdated = false;
};

/// Sizes and strides of an argument, where they lie.
struct LayoutView {
  std::span<const int64_t> sizes;
  std::span<const int64_t> strides;
};

class Session {
 public:
  Session(ExportedPiece piece, SessionOptions options);

  /// The plan for these argument layouts (by graph input) and symbol arguments (in order).
  /// Thread-safe. Throws Error if a size contradicts the captured graph.
  std::shared_ptr<PlanEntry> plan_for(const std::vector<Layout>& arguments,
                                      const std::vector<int64_t>& symbols);
  /// The plan that was asked for last, if it is for these arguments and still good; else null. The
  /// same as plan_for, but allocates nothing, so that a step like the one before costs little.
  std::shared_ptr<PlanEntry> latest_plan_for(std::span<const LayoutView> arguments,
                                             const std::vector<int64_t>& symbols);
  /// All of the captured graph, or those that plans depend on: a counter that is only counted is
  /// not among them.
  enum class Symbols : uint8_t { All, Planned };
  /// The values of symbols for such arguments.
  SymbolValues bind_symbols(const std::vector<Layout>& arguments,
                            const std::vector<int64_t>& symbols, Symbols which) const;
  /// The program whose backward part serves exactly the arrived gradients; with `keep_saved` it
  /// can run again (retain_graph).
  const Program& backward_program(PlanEntry& entry, const std::vector<bool>& arrived,
                                  bool keep_saved);

  /// To be told after each run: a peak outside the predicted band is said, and corrects the model.
  void observe_peak(PlanEntry& entry, int64_t planned_bytes, int64_t measured_bytes);

  const ExportedPiece& piece() const { return piece_; }
  const SessionOptions& options() const { return options_; }
  bool training() const { return options_.training; }
  /// Whether forward output k can receive a gradient.
  const std::vector<bool>& differentiable_outputs() const { return differentiable_outputs_; }

  const Graph& exported_graph() const { return *piece_.graph; }
  const Graph& forward_graph() const { return *forward_; }
  const Graph& joint_graph() const { return *joint_; }
  /// Lowered without recomputation.
  const Lowered& lowered() const { return *lowered_; }
  /// What the memory optimizer found and chose for the shapes of the first plan; null before it
  /// and without training. Computed on demand if nothing was asked of it. A later choice does not
  /// change this one.
  std::shared_ptr<const MemoryChoice> memory_choice();
  /// The same for the shapes of `entry`: what it recomputes, and what that costs there.
  MemoryChoice choice_in(const PlanEntry& entry);
  /// The peak and time that these decisions lead to, for `request` or the shapes of the first plan.
  PlanFigures figures_of(const MemoryDecisions& decisions, const PlanRequest* request = nullptr);
  /// The plan that these decisions lead to, for `request` or the shapes of the first plan.
  std::shared_ptr<const Plan> plan_with(const MemoryDecisions& decisions,
                                        const PlanRequest* request = nullptr);
  /// Leaves `bytes` of a budget in bytes to other pieces of the module, which hold them while this
  /// one runs; plans are made anew if that changes. A `lenient` piece whose first shape does not
  /// fit takes its least plan, until it is known what all pieces need. For other shapes the part of
  /// each piece may be `growth` times as large.
  void leave_to_others(int64_t bytes, bool lenient, double growth = 1.0);
  /// From now on gradients of earlier steps lie beside a step: figures and budgets count them.
  void keep_gradients();
  /// What was said about the memory of new shapes, and of runs, since the last call.
  std::vector<std::string> take_warnings();
  const PassReport& forward_report() const { return forward_report_; }
  const PassReport& joint_report() const { return joint_report_; }
  StageTimes times() const;
  size_t plans_made() const;

 private:
  ExportedPiece piece_;
  SessionOptions options_;
  std::unique_ptr<Graph> forward_;
  std::unique_ptr<Graph> joint_;
  std::shared_ptr<const Lowered> lowered_for(const MemoryDecisions& decisions);
  void find_planned_symbols();
  /// What to recompute for the shapes of `request`.
  MemoryDecisions decide(const PlanRequest& request);
  PlanFigures figures_with(const MemoryDecisions& decisions, const PlanRequest& request);
  /// What the memory optimizer chooses for these shapes.
  std::shared_ptr<const MemoryChoice> chosen_for(const PlanRequest& request);
  /// Decisions for shapes other than the first: the fastest that keep `budget_bytes`.
  MemoryDecisions fit_to_budget(const PlanRequest& request, int64_t budget_bytes);
  /// The part of the budget for other shapes than the first.
  int64_t scaled_part(int64_t budget_bytes) const;
  /// Whether a level's rows are to be chosen anew: those of a small batch say little about a large
  /// one.
  bool outgrown_by(const PlanRequest& request) const;
  /// The decisions of a shape that no plan fits: an error, or the least plan with a warning.
  MemoryDecisions least_of(const MemoryChoice& choice, int64_t budget_bytes, bool fatal);
  void forget_figures();
  /// Bytes of everything that forward could keep for backward.
  int64_t stash_bytes(const SymbolValues& sizes) const;
  std::shared_ptr<const Plan> planned(const MemoryDecisions& decisions, const PlanRequest& request);

  std::shared_ptr<const Lowered> lowered_;
  std::vector<std::pair<MemoryDecisions, std::shared_ptr<const Lowered>>> recomputing_;
  /// Plans that were made to be compared, the last few: one of them is taken.
  struct Compared {
    MemoryDecisions decisions;
    std::vector<std::pair<std::string, int64_t>> symbols;
    std::vector<Layout> arguments;
    std::shared_ptr<const Plan> plan;
  };
  std::vector<Compared> compared_;
  std::shared_ptr<const MemoryChoice> memory_choice_;  // replaced, never changed
  std::optional<PlanRequest> first_request_;           // or a later one, which outgrew it
  std::vector<std::string> warnings_;
  bool lenient_ = false;
  bool accumulates_ = false;
  double growth_ = 1.0;  // see leave_to_others
  int corrections_ = 0;  // plans made anew since libraries took more than they had declared
  PassReport forward_report_;
  PassReport joint_report_;
  std::vector<bool> differentiable_outputs_;
  std::vector<bool> planned_symbols_;  // by symbol argument
  StageTimes times_;

  mutable std::mutex mutex_;
  PlanCache<PlanEntry> plans_;
  size_t plans_made_ = 0;
};

}  // namespace ortmodule
