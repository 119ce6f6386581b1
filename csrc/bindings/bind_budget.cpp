// Divides one budget in bytes among the pieces of a forward.
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/casts/sizes.h"
#include "bindings/engine.h"
#include "bindings/topics.h"
#include "optimizer/memory/piece_budgets.h"
#include "plan/replay.h"

namespace ortmodule::bindings {
namespace py = pybind11;
namespace {

using Pieces = std::vector<std::shared_ptr<CompiledPiece>>;

void set_share(CompiledPiece& piece, const BudgetShare& share) {
  const DeviceScope scope(piece.runtime());
  piece.session().memory()->set_budget_share(share);
}

void reserve_budget(CompiledPiece& piece, const Pieces& earlier) {
  int64_t bytes = 0;
  for (const auto& run : earlier) {
    const auto entry = run->last_plan();
    if (!entry || !run->session().training()) continue;
    const Plan& plan = *entry->program.plan;
    bytes += plan.saved_bytes + output_bytes(plan);
  }
  if (bytes > 0) set_share(piece, {.others_bytes = bytes, .lenient = true});
}

/// The plans that a piece can choose from, for its first shapes.
std::vector<PieceCost> choices_of(CompiledPiece& piece) {
  const auto entry = piece.last_plan();
  ORTM_CHECK(entry, "[memory budget] a piece must have run before a budget is divided");
  const Plan& plan = *entry->program.plan;
  const DeviceScope scope(piece.runtime());
  std::vector<PieceCost> costs;
  for (const FrontierPoint& candidate : piece.session().memory()->choice()->frontier)
    costs.push_back({candidate.figures.peak_bytes, candidate.figures.saved_bytes,
                     output_bytes(plan), gradient_bytes(plan), candidate.figures.time_us});
  return costs;
}

/// The runs of training pieces that have a plan, by the position of the piece.
struct TrainingRuns {
  Pieces pieces;
  PieceRuns runs;
  BesideRuns beside;
};

TrainingRuns training_runs(const Pieces& ran, const BesideRuns& beside) {
  ORTM_CHECK(beside.empty() || beside.size() == ran.size(), "[memory budget] each of ", ran.size(),
             " runs must have its surroundings, but found ", beside.size());
  TrainingRuns found;
  for (size_t i = 0; i < ran.size(); ++i) {
    if (!ran[i]->session().training() || !ran[i]->last_plan()) continue;
    const auto known = std::ranges::find(found.pieces, ran[i]);
    found.runs.push_back(static_cast<size_t>(known - found.pieces.begin()));
    if (known == found.pieces.end()) found.pieces.push_back(ran[i]);
    if (!beside.empty()) found.beside.push_back(beside[i]);
  }
  return found;
}

std::optional<int64_t> divide_budget(const Pieces& ran, int64_t budget_bytes,
                                     const BesideRuns& around) {
  const auto [pieces, runs, beside] = training_runs(ran, around);
  if (runs.size() < 2) return std::nullopt;
  std::vector<std::vector<PieceCost>> choices;
  for (const auto& piece : pieces) choices.push_back(choices_of(*piece));
  const std::vector<size_t> taken = fastest_within(choices, runs, budget_bytes, beside);
  std::vector<PieceCost> costs;
  for (size_t i = 0; i < pieces.size(); ++i) costs.push_back(choices[i][taken[i]]);
  const int64_t peak = step_peak(costs, runs, beside);
  const double growth =
      static_cast<double>(budget_bytes) / static_cast<double>(std::max<int64_t>(peak, 1));
  for (size_t i = 0; i < pieces.size(); ++i)
    set_share(*pieces[i], {.others_bytes = budget_bytes - costs[i].peak_bytes,
                           .growth = std::max(growth, 1.0)});
  return peak > budget_bytes ? std::optional(peak) : std::nullopt;
}

int64_t planned_peak(const Pieces& ran, const BesideRuns& around) {
  const auto [pieces, runs, beside] = training_runs(ran, around);
  std::vector<PieceCost> costs;
  for (const auto& piece : pieces) {
    const auto entry = piece->last_plan();
    const Plan& plan = *entry->program.plan;
    const DeviceScope scope(piece->runtime());
    const PlanFigures figures =
        piece->session().memory()->figures_of(entry->decisions, &entry->signature);
    costs.push_back({figures.peak_bytes, figures.saved_bytes, output_bytes(plan),
                     gradient_bytes(plan), figures.time_us});
  }
  return step_peak(costs, runs, beside);
}

}  // namespace

void init_budget(py::module_& m) {
  py::class_<PieceCost>(m, "PieceCost", "The memory of one plan of a piece.")
      .def(py::init([](int64_t peak, int64_t saved, int64_t output, int64_t gradient) {
             return PieceCost{peak, saved, output, gradient, 0.0};
           }),
           py::kw_only(), py::arg("peak_bytes"), py::arg("saved_bytes"), py::arg("output_bytes"),
           py::arg("gradient_bytes"));
  py::class_<BesideRun>(m, "BesideRun", "What a run with sharded parameters needs outside.")
      .def(py::init([](std::optional<int64_t> gradient, int64_t around, int64_t behind) {
             return BesideRun{gradient, around, behind};
           }),
           py::kw_only(), py::arg("gradient_bytes") = py::none(), py::arg("around_bytes") = 0,
           py::arg("behind_bytes") = 0);
  const auto none = BesideRuns();
  m.def("held_by_others", &held_by_others, py::arg("costs"), py::arg("runs"),
        py::arg("beside") = none,
        "By run: the bytes that all other runs of a forward hold at the same time. `costs` is by "
        "piece; `runs` holds the piece of each run; `beside` is by run.");
  m.def("step_peak", &step_peak, py::arg("costs"), py::arg("runs"), py::arg("beside") = none,
        "The peak of a step over all pieces.");
  m.def("planned_peak", &planned_peak, py::arg("ran"), py::arg("beside") = none,
        "The peak of a step with the last plans of the pieces that it ran.");
  py::class_<BudgetShortfall>(m, "BudgetShortfall", "A step that does not fit its budget.")
      .def(py::init([](int64_t budget, int64_t step, bool pieces) {
             return BudgetShortfall{budget, step, pieces};
           }),
           py::kw_only(), py::arg("budget_bytes"), py::arg("step_bytes"), py::arg("has_pieces"))
      .def_readonly("budget_bytes", &BudgetShortfall::budget_bytes)
      .def_readonly("step_bytes", &BudgetShortfall::step_bytes)
      .def(
          "text",
          [](const BudgetShortfall& found, const MemoryOptions& options) {
            return over_budget_text(options, found);
          },
          py::arg("options"), "The message about it, with the numbers of the user's own budget.");
  m.def("reserve_budget", &reserve_budget, py::arg("piece"), py::arg("earlier"),
        "Gives a new piece the part of the budget that `earlier` runs of this forward do not use, "
        "until divide_budget divides it.");
  m.def("divide_budget", &divide_budget, py::arg("ran"), py::arg("budget_bytes"),
        py::arg("beside") = none,
        "Divides a budget among the pieces of a forward (`ran`: the piece of each run). The share "
        "of a piece is the peak of its plan; for other shapes all shares grow by the same factor, "
        "up to the budget. Returns the step's peak if it exceeds the budget, else None.");
}

}  // namespace ortmodule::bindings
