// The budget against brute force: random small modules, every combination of decisions.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "gradient/build_gradient.h"
#include "ir/text.h"
#include "lower/lower.h"
#include "ops/emit.h"
#include "optimizer/memory/budget.h"
#include "plan/make_plan.h"
#include "plan/replay.h"
#include "plan/step_cost.h"

namespace ortmodule {
namespace {

/// A random module of pointwise ops and norms over [rows, 16] with a residual now and then.
std::unique_ptr<Graph> random_module(std::mt19937& rng) {
  static constexpr std::string_view kUnary[] = {"Tanh", "Sigmoid", "Exp", "Gelu", "Softmax"};
  auto graph = std::make_unique<Graph>();
  const auto draw = [&](size_t count) {
    return std::uniform_int_distribution<size_t>(0, count - 1)(rng);
  };
  const int64_t rows = 8 << draw(4);
  std::vector<Value*> known;
  known.push_back(graph->add_input("x", DType::Float32, {rows, 16}, InputKind::User, false));
  for (int i = 0; i < 2; ++i)
    known.push_back(
        graph->add_input(str("w", i), DType::Float32, {rows, 16}, InputKind::Parameter, true));
  const size_t count = 3 + draw(6);
  for (size_t i = 0; i < count; ++i) {
    Value* a = known[known.size() - 1 - draw(std::min<size_t>(known.size(), 3))];
    Value* b = known[draw(known.size())];
    const size_t kind = draw(4);
    if (kind < 2) {
      const std::string_view op = kUnary[draw(std::size(kUnary))];
      known.push_back(emit(*graph, op, {a}));
    } else {
      known.push_back(emit(*graph, kind == 2 ? "Mul" : "Add", {a, b}));
    }
  }
  Value* loss = emit(*graph, "ReduceSum", {known.back()}, {{"axes", Dims{}}, {"keepdims", 0}});
  graph->add_output(loss, OutputKind::Output, 0);
  return graph;
}

struct Module {
  std::unique_ptr<Graph> joint;
  PlanRequest request;

  explicit Module(std::mt19937& rng) : joint(build_gradient(*random_module(rng))) {
    for (const GraphInput& input : joint->inputs()) {
      const Sizes sizes = evaluate(input.value->dims, {});
      request.arguments.push_back({sizes, contiguous_strides(sizes), 0});
    }
  }
  PlanFigures figures(const MemoryDecisions& decisions) const {
    const auto plan = make_plan(lower(*joint, Device::CPU, decisions), request);
    return {plan->peak_bytes, replay(*plan, ReplayMode::Accumulate).peak_bytes, plan->saved_bytes,
            estimated_us(*plan)};
  }
  MemoryChoice choose(const MemoryOptions& options) const {
    return choose_memory_plan(*joint, options, {}, {},
                              [&](const MemoryDecisions& d) { return figures(d); });
  }
};

using Chosen = std::vector<std::optional<Strategy>>;

/// Calls `visit` with every combination of ways to treat the stashes from `first` on.
void for_each_combination(const MemoryChoice& choice, size_t first, Chosen& chosen,
                          const std::function<void(const Chosen&)>& visit) {
  if (first == choice.stashes.size()) return visit(chosen);
  chosen[first].reset();
  for_each_combination(choice, first + 1, chosen, visit);
  for (const RecomputeSubgraph& subgraph : choice.stashes[first].subgraphs) {
    chosen[first] = subgraph.strategy;
    for_each_combination(choice, first + 1, chosen, visit);
  }
  chosen[first].reset();
}

TEST(Budget, IsTheOptimumOfSmallModules) {
  std::mt19937 rng(7);
  int with_choice = 0;
  for (int number = 0; number < 1200; ++number) {
    const Module module(rng);
    MemoryOptions options;
    options.budget_fraction = 1.0;
    const MemoryChoice choice = module.choose(options);
    std::vector<PlanFigures> all;
    Chosen chosen(choice.stashes.size());
    for_each_combination(choice, 0, chosen, [&](const Chosen& combination) {
      all.push_back(module.figures(decisions_of(choice, combination)));
    });
    if (all.size() > 512) continue;
    with_choice += all.size() > 1;
    for (double part : {1.0, 0.9, 0.8, 0.7, 0.6, 0.5}) {
      options.budget_fraction = part;
      const auto budget =
          static_cast<int64_t>(part * static_cast<double>(choice.before.peak_bytes));
      double best = std::numeric_limits<double>::infinity();
      int64_t least = std::numeric_limits<int64_t>::max();
      for (const PlanFigures& figures : all) {
        least = std::min(least, figures.peak_bytes);
        if (figures.peak_bytes <= budget) best = std::min(best, figures.time_us);
      }
      const MemoryChoice taken = module.choose(options);
      ASSERT_EQ(taken.minimum_bytes, least) << "module " << number;
      ASSERT_EQ(taken.fits, least <= budget) << "module " << number << " part " << part;
      if (!taken.fits) continue;
      ASSERT_LE(taken.after.peak_bytes, budget) << "module " << number << " part " << part;
      ASSERT_DOUBLE_EQ(taken.after.time_us, best) << "module " << number << " part " << part;
    }
  }
  EXPECT_GE(with_choice, 1000);
}

TEST(Budget, LooksAtFewPlansAndNeverPastASmallerBudget) {
  // Peaks ascend, but the expectation is wrong by up to three plans.
  const std::vector<int64_t> peaks = {10, 20, 30, 40, 50, 60, 70, 80};
  for (int64_t shift : {-30, -10, 0, 10, 30}) {
    for (bool rough : {false, true}) {
      size_t before = 0;
      for (int64_t budget = 5; budget <= 90; budget += 5) {
        int looks = 0;
        const BudgetCandidates candidates{
            peaks.size(), [&](size_t i) { return peaks[i] + shift; },
            [&](size_t i) {
              ++looks;
              return peaks[i];
            },
            [&](size_t i) { return 100.0 - 10.0 * static_cast<double>(i); }, rough};
        const size_t taken = fastest_that_fits(candidates, budget);
        EXPECT_GE(taken + (rough ? 1 : 0), before);
        EXPECT_TRUE(peaks[taken] <= budget || taken == 0);
        EXPECT_LE(looks, 5);
        before = taken;
      }
    }
  }
}

TEST(Budget, CandidatesForLargerShapesAreKeptWhereGradientsDominate) {
  std::mt19937 rng(7);
  int with_gain = 0;
  for (int number = 0; number < 100; ++number) {
    const Module module(rng);
    MemoryOptions options;
    options.budget_fraction = 1.0;
    int64_t least = std::numeric_limits<int64_t>::max();  // saved by any combination
    const MemoryChoice choice =
        choose_memory_plan(*module.joint, options, {}, {}, [&](const MemoryDecisions& decisions) {
          PlanFigures figures = module.figures(decisions);
          least = std::min(least, figures.saved_bytes);
          figures.peak_bytes = 1 << 30;  // gradients; no activation exceeds them
          figures.grown_peak_bytes.fill(figures.peak_bytes);
          figures.grown_peak_bytes.back() += figures.saved_bytes;
          return figures;
        });
    ASSERT_EQ(choice.frontier.size(), 1);
    const int64_t saved = choice.frontier[0].figures.saved_bytes;
    int64_t least_kept = saved;
    for (const FrontierPoint& point : choice.grown)
      least_kept = std::min(least_kept, point.figures.saved_bytes);
    ASSERT_EQ(least_kept, least) << "module " << number;
    with_gain += least < saved;
  }
  EXPECT_GE(with_gain, 10);
}

TEST(Budget, SaysWhatTheWholeStepNeeds) {
  MemoryOptions options;
  EXPECT_EQ(over_budget_text(options, {50, 80, false}),
            "[memory budget] the step must fit 50 bytes, but found that it takes at least 80 with "
            "this batch; use a smaller batch or a budget of at least 80 bytes");
  options.reserved_bytes = 7;
  EXPECT_EQ(over_budget_text(options, {50, 80, true}),
            "[memory budget] the step must fit 57 bytes, but found that it takes 87 with this "
            "batch (7 of them for parameters, buffers and optimizer state); use a smaller batch, "
            "fewer graph breaks, or a budget of at least 87 bytes");
  options = {};
  options.budget_fraction = 0.5;
  EXPECT_EQ(over_budget_text(options, {50, 81, false}),
            "[memory budget] the step must fit 50 bytes (50% of its peak), but found that it takes "
            "at least 81 with this batch; use a budget of at least 80%");
}

}  // namespace
}  // namespace ortmodule
