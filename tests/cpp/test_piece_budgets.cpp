// One budget for the pieces of a module: what they hold beside each other, and who may take what.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "base/error.h"
#include "optimizer/memory/piece_budgets.h"

namespace ortmodule {
namespace {

using Bytes = std::vector<int64_t>;

TEST(PieceBudgets, WhatOthersHold) {
  const PieceCost first{.peak_bytes = 100, .saved_bytes = 60, .gradient_bytes = 7};
  const PieceCost second{.peak_bytes = 80, .saved_bytes = 30, .gradient_bytes = 5};
  EXPECT_EQ(held_by_others({first, second}, {0, 1}), (Bytes{5, 60}));
  EXPECT_EQ(step_peak({first, second}, {0, 1}), 60 + 80);
  EXPECT_EQ(step_peak({first, second}, {1, 0}), 30 + 100);
  EXPECT_EQ(step_peak({first, second}, {0}), 100);
  EXPECT_EQ(step_peak({}, {}), 0);
  EXPECT_THROW(step_peak({first}, {1}), Error);
}

TEST(PieceBudgets, TheCallerHoldsTheLastOutputsWhileEarlierPiecesRunBackward) {
  const PieceCost first{.peak_bytes = 100, .saved_bytes = 60, .output_bytes = 4};
  const PieceCost second{.peak_bytes = 80, .saved_bytes = 30, .output_bytes = 50};
  EXPECT_EQ(held_by_others({first, second}, {0, 1}), (Bytes{50, 64}));
  EXPECT_EQ(step_peak({first, second}, {0, 1}), 150);
}

TEST(PieceBudgets, APieceThatRunsAgainLeavesItsGradientsOnce) {
  const PieceCost twice{.peak_bytes = 100, .saved_bytes = 60, .gradient_bytes = 7};
  EXPECT_EQ(held_by_others({twice}, {0, 0, 0}), (Bytes{7, 67, 120}));
}

TEST(PieceBudgets, AShardedRunLeavesItsShardsAndHasGathersAroundIt) {
  const PieceCost unit{.peak_bytes = 100, .saved_bytes = 10, .gradient_bytes = 40};
  const BesideRun beside{.gradient_bytes = 20, .around_bytes = 80, .behind_bytes = 120};
  EXPECT_EQ(held_by_others({unit}, {0, 0, 0}, {beside, beside, beside}), (Bytes{40, 30, 20}));
  EXPECT_EQ(step_peak({unit}, {0, 0, 0}, {beside, beside, beside}), 40 + 100 + 80);
  const BesideRun reduced{.gradient_bytes = 20, .around_bytes = 80, .behind_bytes = 240};
  EXPECT_EQ(step_peak({unit}, {0, 0}, {beside, reduced}), 10 + 240);
  EXPECT_THROW(step_peak({unit}, {0, 0}, {beside}), Error);
}

std::vector<PieceCost> random_choices(std::mt19937& rng, int64_t gradient_bytes) {
  const auto draw = [&](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(rng);
  };
  std::vector<PieceCost> choices(static_cast<size_t>(draw(1, 9)));
  Bytes peaks, times;
  for (size_t i = 0; i < choices.size(); ++i) {
    peaks.push_back(draw(100, 1000));
    times.push_back(draw(1, 1000));
  }
  std::sort(peaks.begin(), peaks.end());
  std::sort(times.rbegin(), times.rend());
  for (size_t i = 0; i < choices.size(); ++i)
    choices[i] = {peaks[i], peaks[i] / 2, 0, gradient_bytes, static_cast<double>(times[i])};
  return choices;
}

struct Figures {
  int64_t peak = 0;
  double time = 0;
};

Figures figures_of(const std::vector<std::vector<PieceCost>>& choices, const PieceRuns& runs,
                   const std::vector<size_t>& taken) {
  std::vector<PieceCost> costs;
  for (size_t i = 0; i < choices.size(); ++i) costs.push_back(choices[i][taken[i]]);
  Figures figures{step_peak(costs, runs), 0};
  for (size_t piece : runs) figures.time += costs[piece].time_us;
  return figures;
}

/// The least time of all combinations within the budget.
double least_time(const std::vector<std::vector<PieceCost>>& choices, const PieceRuns& runs,
                  int64_t budget, std::vector<size_t> taken = {}) {
  if (taken.size() == choices.size()) {
    const Figures figures = figures_of(choices, runs, taken);
    return figures.peak <= budget ? figures.time : std::numeric_limits<double>::infinity();
  }
  double least = std::numeric_limits<double>::infinity();
  taken.push_back(0);
  for (; taken.back() < choices[taken.size() - 1].size(); ++taken.back())
    least = std::min(least, least_time(choices, runs, budget, taken));
  return least;
}

// Few combinations against brute force; where they are many, the greedy walk is never over the
// budget while the least plans are within it.
TEST(PieceBudgets, TheFastestThatFit) {
  std::mt19937 rng(0);
  int few = 0, many = 0;
  for (int number = 0; number < 100; ++number) {
    std::vector<std::vector<PieceCost>> choices;
    std::vector<size_t> smallest, largest;
    PieceRuns runs;
    size_t combinations = 1;
    const size_t count = 2 + rng() % 6;
    for (size_t i = 0; i < count; ++i) {
      choices.push_back(random_choices(rng, static_cast<int64_t>(rng() % 50)));
      combinations *= choices.back().size();
      smallest.push_back(0);
      largest.push_back(choices.back().size() - 1);
      runs.push_back(i);
    }
    const int64_t least = figures_of(choices, runs, smallest).peak;
    const int64_t most = figures_of(choices, runs, largest).peak;
    EXPECT_EQ(figures_of(choices, runs, fastest_within(choices, runs, most)).time,
              figures_of(choices, runs, largest).time);
    for (const int64_t budget : {least, (least + most) / 2}) {
      const Figures taken = figures_of(choices, runs, fastest_within(choices, runs, budget));
      EXPECT_LE(taken.peak, budget) << number;
      if (combinations > 2000) continue;
      EXPECT_EQ(taken.time, least_time(choices, runs, budget)) << number;
    }
    (combinations <= 2000 ? few : many) += 1;
    EXPECT_EQ(figures_of(choices, runs, fastest_within(choices, runs, 0)).peak, least) << number;
  }
  EXPECT_GT(few, 20);
  EXPECT_GT(many, 20);
}

TEST(PieceBudgets, APieceThatRunsOftenCostsItsTimeEachTime) {
  const std::vector<PieceCost> choices = {{.peak_bytes = 10, .time_us = 9},
                                          {.peak_bytes = 20, .time_us = 5}};
  const std::vector<PieceCost> other = {{.peak_bytes = 10, .time_us = 10},
                                        {.peak_bytes = 20, .time_us = 5}};
  // One of them may keep its values: 5 us once, or 4 us twice.
  std::vector<std::vector<PieceCost>> both{choices, other};
  for (auto& of_piece : both)
    for (PieceCost& cost : of_piece) cost.saved_bytes = cost.peak_bytes;
  EXPECT_EQ(fastest_within(both, {0, 1}, 30), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(fastest_within(both, {0, 0, 1}, 50), (std::vector<size_t>{1, 0}));
  EXPECT_THROW(fastest_within({{}}, {0}, 30), Error);
}

}  // namespace
}  // namespace ortmodule
