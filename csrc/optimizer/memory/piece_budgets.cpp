#include "optimizer/memory/piece_budgets.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"

namespace ortmodule {
namespace {

using Choices = std::vector<std::vector<PieceCost>>;
using Taken = std::vector<size_t>;  // by piece: position among its choices

constexpr size_t kMostCombinations = 50'000;  // for an exhaustive search, well below a second

bool are_few(const Choices& choices) {
  size_t combinations = 1;
  for (const auto& of_piece : choices) {
    if (of_piece.size() > kMostCombinations / combinations) return false;
    combinations *= of_piece.size();
  }
  return true;
}

/// Advances `taken` to the next combination, the last piece first. False after the last one.
bool next_combination(const Choices& choices, Taken& taken) {
  for (size_t piece = taken.size(); piece-- > 0;) {
    if (++taken[piece] < choices[piece].size()) return true;
    taken[piece] = 0;
  }
  return false;
}

/// Takes the next smaller choice of the piece where it costs the least time per byte freed. False
/// if all pieces have their smallest.
bool next_smaller(const Choices& choices, Taken& taken) {
  std::optional<size_t> cheapest;
  double least_cost = std::numeric_limits<double>::infinity();
  for (size_t piece = 0; piece < taken.size(); ++piece) {
    if (taken[piece] == 0) continue;
    const PieceCost& now = choices[piece][taken[piece]];
    const PieceCost& smaller = choices[piece][taken[piece] - 1];
    const int64_t freed =
        now.peak_bytes - smaller.peak_bytes + now.saved_bytes - smaller.saved_bytes;
    const double cost =
        (smaller.time_us - now.time_us) / static_cast<double>(std::max<int64_t>(freed, 1));
    if (cheapest && cost >= least_cost) continue;
    cheapest = piece;
    least_cost = cost;
  }
  if (cheapest) --taken[*cheapest];
  return cheapest.has_value();
}

std::vector<PieceCost> costs_of(const Choices& choices, const Taken& taken) {
  std::vector<PieceCost> costs;
  for (size_t piece = 0; piece < taken.size(); ++piece)
    costs.push_back(choices[piece][taken[piece]]);
  return costs;
}

}  // namespace

std::vector<int64_t> held_by_others(const std::vector<PieceCost>& costs, const PieceRuns& runs,
                                    const BesideRuns& beside) {
  if (runs.empty()) return {};
  ORTM_CHECK(beside.empty() || beside.size() == runs.size(), "[memory budget] each of ",
             runs.size(), " runs must have its surroundings, but found ", beside.size());
  for (size_t piece : runs)
    ORTM_CHECK(piece < costs.size(), "[memory budget] a run must be of one of ", costs.size(),
               " pieces, but found number ", piece);
  // Backward makes the gradients of a piece at its last run.
  std::vector<int64_t> gradients(runs.size(), 0);
  std::vector<bool> seen(costs.size(), false);
  int64_t later = costs[runs.back()].output_bytes;
  for (size_t run = runs.size(); run-- > 0;) {
    const bool is_last = !seen[runs[run]];
    seen[runs[run]] = true;
    gradients[run] = is_last ? costs[runs[run]].gradient_bytes : 0;
    if (!beside.empty()) gradients[run] = beside[run].gradient_bytes.value_or(gradients[run]);
    later += gradients[run];
  }
  std::vector<int64_t> held;
  int64_t earlier = 0;
  for (size_t run = 0; run < runs.size(); ++run) {
    const PieceCost& cost = costs[runs[run]];
    later -= gradients[run];
    held.push_back(earlier + later);
    earlier += cost.saved_bytes + cost.output_bytes;
  }
  held.back() -= costs[runs.back()].output_bytes;  // part of its own peak
  return held;
}

int64_t step_peak(const std::vector<PieceCost>& costs, const PieceRuns& runs,
                  const BesideRuns& beside) {
  const std::vector<int64_t> held = held_by_others(costs, runs, beside);
  int64_t peak = 0;
  for (size_t run = 0; run < runs.size(); ++run) {
    const BesideRun other = beside.empty() ? BesideRun() : beside[run];
    const int64_t running = costs[runs[run]].peak_bytes + other.around_bytes;
    peak = std::max(peak, held[run] + std::max(running, other.behind_bytes));
  }
  return peak;
}

std::vector<size_t> fastest_within(const Choices& choices, const PieceRuns& runs,
                                   int64_t budget_bytes, const BesideRuns& beside) {
  for (const auto& of_piece : choices)
    ORTM_CHECK(!of_piece.empty(), "[memory budget] each piece must have a plan, but found none");
  const bool all = are_few(choices);
  Taken taken;
  for (const auto& of_piece : choices) taken.push_back(all ? 0 : of_piece.size() - 1);
  Taken best = taken;
  std::pair<int64_t, double> least{std::numeric_limits<int64_t>::max(), 0.0};  // excess, time
  do {
    const std::vector<PieceCost> costs = costs_of(choices, taken);
    double time = 0;
    for (size_t piece : runs) time += costs[piece].time_us;
    const std::pair figures{std::max<int64_t>(step_peak(costs, runs, beside) - budget_bytes, 0),
                            time};
    if (figures >= least) continue;
    least = figures;
    best = taken;
  } while (all ? next_combination(choices, taken) : next_smaller(choices, taken));
  return best;
}

}  // namespace ortmodule
