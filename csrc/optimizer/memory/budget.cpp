#include "optimizer/memory/budget.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "ops/op_def.h"
#include "optimizer/memory/offload.h"

namespace ortmodule {
namespace {

using Chosen = std::vector<std::optional<Strategy>>;

struct Candidate {
  Chosen chosen;
  PlanFigures figures;
  bool exact = true;  // evaluated, not interpolated
};

/// A stash that may be recomputed, with the time that it costs per byte freed.
struct Unit {
  size_t stash = 0;
  size_t row = 0;
  double cost_per_byte = 0;  // microseconds
};

class BudgetChooser {
 public:
  BudgetChooser(MemoryChoice& choice, const Evaluate& evaluate)
      : choice_(choice), evaluate_(evaluate) {}

  /// The Pareto frontier of peak and time: peak ascends, time descends.
  std::vector<Candidate> frontier() {
    if (!add_everything()) {
      rank_units();
      add_chain(Chosen(choice_.stashes.size()));
      add(level_candidates(choice_, 1));
      add(level_candidates(choice_, 2));
      add_sparser_boundaries();
      for (const Chosen& offloaded : offload_candidates(choice_, prices())) add_chain(offloaded);
    }
    if (choice_.host_budget_bytes)
      std::erase_if(candidates_, [&](const Candidate& candidate) {
        return candidate.figures.host_bytes > *choice_.host_budget_bytes;
      });
    return pareto(candidates_);
  }

  /// The candidates of frontier() that are not on it, but on that of smaller or larger shapes:
  /// where gradients take most of the peak, it does not tell which candidate saves least.
  std::vector<Candidate> grown_frontier() const {
    std::vector<Candidate> candidates = candidates_;
    std::vector<bool> on_any(candidates.size(), false);
    mark_pareto(
        candidates, [](const PlanFigures& f) { return f.peak_bytes; }, on_any);
    const std::vector<bool> known = on_any;
    for (size_t g = 0; g < kGrowths.size(); ++g)
      mark_pareto(
          candidates, [g](const PlanFigures& f) { return f.grown_peak_bytes[g]; }, on_any);
    std::vector<Candidate> grown;
    for (size_t c = 0; c < candidates.size(); ++c)
      if (on_any[c] && !known[c]) grown.push_back(std::move(candidates[c]));
    return grown;
  }

  /// The fastest of the candidates of frontier() that keeps nothing on the host and fits, or else
  /// the one with the lowest peak. Figures may be interpolated.
  PlanFigures fastest_on_device(int64_t budget_bytes) const {
    std::vector<Candidate> on_device;
    for (const Candidate& candidate : candidates_)
      if (candidate.figures.host_bytes == 0) on_device.push_back(candidate);
    PlanFigures fastest;
    for (const Candidate& candidate : pareto(std::move(on_device)))
      if (fastest.peak_bytes == 0 || candidate.figures.peak_bytes <= budget_bytes)
        fastest = candidate.figures;
    return fastest;
  }

 private:
  /// Marks the Pareto frontier of `peak_of(figures)` and time, and returns it: peak ascends.
  template <class PeakOf>
  static std::vector<size_t> mark_pareto(const std::vector<Candidate>& candidates,
                                         const PeakOf& peak_of, std::vector<bool>& marked) {
    std::vector<size_t> order(candidates.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto key = [&](size_t c) {
      return std::pair(peak_of(candidates[c].figures), candidates[c].figures.time_us);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return key(a) < key(b); });
    // The lowest peak is reported as reachable, so it must not be interpolated.
    const auto first =
        std::find_if(order.begin(), order.end(), [&](size_t c) { return candidates[c].exact; });
    std::vector<size_t> best;
    for (auto at = first; at != order.end(); ++at) {
      if (!best.empty() && key(*at).second >= key(best.back()).second) continue;
      best.push_back(*at);
      marked[*at] = true;
    }
    return best;
  }

  static std::vector<Candidate> pareto(std::vector<Candidate> candidates) {
    std::vector<bool> marked(candidates.size(), false);
    std::vector<Candidate> best;
    for (size_t c : mark_pareto(
             candidates, [](const PlanFigures& f) { return f.peak_bytes; }, marked))
      best.push_back(std::move(candidates[c]));
    return best;
  }

  Candidate evaluated(Chosen chosen) const {
    const PlanFigures figures = evaluate_(decisions_of(choice_, chosen));
    return {std::move(chosen), figures, true};
  }

  void add(Chosen chosen) { candidates_.push_back(evaluated(std::move(chosen))); }

  /// Adds all combinations if they are few, which gives the exact optimum. False if they are not.
  bool add_everything() {
    constexpr size_t kMost = 512;
    size_t count = 1;
    for (const Stash& stash : choice_.stashes) {
      count *= 1 + stash.subgraphs.size();
      if (count > kMost) return false;
    }
    for (size_t number = 0; number < count; ++number) {
      Chosen chosen(choice_.stashes.size());
      size_t rest = number;
      for (size_t s = 0; s < chosen.size(); ++s) {
        const auto& subgraphs = choice_.stashes[s].subgraphs;
        const size_t way = rest % (1 + subgraphs.size());
        rest /= 1 + subgraphs.size();
        if (way > 0) chosen[s] = subgraphs[way - 1].strategy;
      }
      add(std::move(chosen));
    }
    return true;
  }

  // Ranks the stashes of each row by time per byte freed. A row is evaluated as a whole, because
  // clones share work with each other and with the pointwise groups of backward.
  void rank_units() {
    const std::vector<bool> boundary = boundary_stashes(choice_);
    for (size_t r = 0; r < choice_.rows.size(); ++r) {
      const ClusterRow& row = choice_.rows[r];
      if (row.strategy == Strategy::Offload) continue;  // offload_candidates() chooses among them
      Chosen alone(choice_.stashes.size());
      std::vector<size_t> members;
      for (size_t s : row.stashes) {
        if (boundary[s] || !has_subgraph(s, row.strategy)) continue;
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
    // Cheapest first. Within a row the first layers come first: backward reaches them last, when
    // little else is alive.
    std::stable_sort(units_.begin(), units_.end(), [](const Unit& a, const Unit& b) {
      return a.cost_per_byte < b.cost_per_byte;
    });
  }

  bool has_subgraph(size_t stash, Strategy strategy) const {
    for (const RecomputeSubgraph& subgraph : choice_.stashes[stash].subgraphs)
      if (subgraph.strategy == strategy) return true;
    return false;
  }

  /// By stash: the time that recomputing it costs per byte freed; infinite where that is not
  /// possible or not considered.
  std::vector<double> prices() const {
    std::vector<double> prices(choice_.stashes.size(), std::numeric_limits<double>::infinity());
    for (const Unit& unit : units_)
      prices[unit.stash] = std::min(prices[unit.stash], unit.cost_per_byte);
    return prices;
  }

  // Adds the units one by one in order of rank to what is `chosen`. Only the end of each row is
  // evaluated: its units are the same cluster in successive layers, so the candidates between are
  // interpolated.
  void add_chain(Chosen chosen) {
    std::vector<Candidate> row{evaluated(chosen)};
    for (size_t i = 0; i < units_.size(); ++i) {
      if (!chosen[units_[i].stash]) chosen[units_[i].stash] = strategy_of(units_[i]);
      const bool ends = i + 1 == units_.size() || units_[i + 1].row != units_[i].row;
      row.push_back(ends ? evaluated(chosen) : Candidate{chosen, {}, false});
      if (!ends) continue;
      interpolate(row, 0, row.size() - 1);
      Candidate last = std::move(row.back());
      row.pop_back();
      for (Candidate& candidate : row) candidates_.push_back(std::move(candidate));
      row.clear();
      row.push_back(std::move(last));
    }
    candidates_.push_back(std::move(row.back()));
  }

  // Interpolates between two evaluated candidates. Where the peak in the middle is far from linear,
  // as when the first unit alone moves it, the middle is evaluated and each half handled again.
  void interpolate(std::vector<Candidate>& row, size_t first, size_t last) {
    if (last - first < 2) return;
    const PlanFigures from = row[first].figures, to = row[last].figures;
    const auto between = [&](size_t i) {
      return interpolated(from, to,
                          static_cast<double>(i - first) / static_cast<double>(last - first));
    };
    const int64_t drop = std::abs(from.peak_bytes - to.peak_bytes);
    if (const size_t middle = (first + last) / 2; drop > 0 && extra_evaluations_ > 0) {
      --extra_evaluations_;
      row[middle] = evaluated(std::move(row[middle].chosen));
      const int64_t error = std::abs(row[middle].figures.peak_bytes - between(middle).peak_bytes);
      if (error * kInterpolationError > drop) {
        interpolate(row, first, middle);
        interpolate(row, middle, last);
        return;
      }
    }
    for (size_t i = first + 1; i < last; ++i)
      if (!row[i].exact) row[i].figures = between(i);
  }

  static PlanFigures interpolated(const PlanFigures& a, const PlanFigures& b, double part) {
    const auto bytes = [&](int64_t x, int64_t y) {
      return x + static_cast<int64_t>(part * static_cast<double>(y - x));
    };
    PlanFigures figures{bytes(a.peak_bytes, b.peak_bytes),
                        bytes(a.accumulating_peak_bytes, b.accumulating_peak_bytes),
                        bytes(a.saved_bytes, b.saved_bytes),
                        a.time_us + part * (b.time_us - a.time_us),
                        bytes(a.host_bytes, b.host_bytes)};
    for (size_t g = 0; g < kGrowths.size(); ++g)
      figures.grown_peak_bytes[g] = bytes(a.grown_peak_bytes[g], b.grown_peak_bytes[g]);
    return figures;
  }

  Strategy strategy_of(const Unit& unit) const { return choice_.rows[unit.row].strategy; }

  // Less than one kept value per layer: only every second, third ... layer keeps its operand.
  void add_sparser_boundaries() {
    const std::vector<bool> boundary = boundary_stashes(choice_);
    Chosen all(choice_.stashes.size());
    for (const Unit& unit : units_) all[unit.stash] = strategy_of(unit);
    for (size_t stride = 2; stride <= kMostLayersPerBoundary; ++stride) {
      Chosen chosen = all;
      size_t at = 0;
      bool any = false;
      for (size_t s = 0; s < chosen.size(); ++s) {
        if (!boundary[s]) continue;
        if (++at % stride == 0 || !has_subgraph(s, Strategy::Recompute)) continue;
        chosen[s] = Strategy::Recompute;
        any = true;
      }
      if (any) add(std::move(chosen));
    }
  }

  /// As 1/n of the peak's change over the interval: the largest error of an interpolated peak.
  static constexpr int64_t kInterpolationError = 8;
  /// With larger strides the layers recomputed together dominate the peak themselves.
  static constexpr size_t kMostLayersPerBoundary = 6;

  MemoryChoice& choice_;
  const Evaluate& evaluate_;
  std::vector<Unit> units_;
  std::vector<Candidate> candidates_;
  int extra_evaluations_ = 64;  // within rows: an evaluation takes milliseconds
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

namespace {

/// The search of `fastest_that_fits`.
class FastestSearch {
 public:
  FastestSearch(const BudgetCandidates& candidates, int64_t budget_bytes)
      : candidates_(candidates), budget_bytes_(budget_bytes) {}

  size_t run() {
    size_t taken = last_expected_to_fit();
    if (fits(taken)) return candidates_.rough ? corrected(taken) : faster_than(taken);
    while (taken > 0) {
      --taken;
      while (taken > 0 && !may_fit(taken)) --taken;
      if (fits(taken)) break;
    }
    return taken;
  }

 private:
  size_t last_expected_to_fit() const {
    size_t first = 0, end = candidates_.count;  // [0, first) is expected to fit
    while (first < end) {
      const size_t middle = (first + end) / 2;
      const bool yes = may_fit(middle);
      (yes ? first : end) = yes ? middle + 1 : middle;
    }
    return first > 0 ? first - 1 : 0;
  }

  bool fits(size_t i) {
    const int64_t peak = candidates_.peak_bytes(i);
    correction_ = static_cast<double>(peak) /
                  static_cast<double>(std::max<int64_t>(candidates_.expected_bytes(i), 1));
    if (peak <= budget_bytes_) return true;
    // Each failure asks the next one for more room, so that few are tried.
    ++failures_;
    correction_ *= 1.0 + kRoomPerFailure * failures_;
    return false;
  }

  bool may_fit(size_t i) const {
    const auto expected = static_cast<double>(candidates_.expected_bytes(i));
    const double correction = candidates_.rough ? correction_ : 1.0;
    return correction * expected <= static_cast<double>(budget_bytes_);
  }

  /// What is expected to fit by the peaks that plans showed, as long as it saves time enough for
  /// another plan.
  size_t corrected(size_t taken) {
    constexpr int kTries = 3;
    size_t most = candidates_.count - 1;
    for (int tries = 0; tries < kTries; ++tries) {
      const size_t next = std::min(last_expected_to_fit(), most);
      const double now_us = candidates_.time_us(taken);
      const double saved_us = next > taken ? now_us - candidates_.time_us(next) : 0;
      if (saved_us < kLeastSaving * now_us || next <= taken) break;
      if (fits(next)) {
        taken = next;
      } else {
        most = next - 1;
      }
    }
    return taken;
  }

  /// An expected peak may be too high: slightly larger ones are tried.
  size_t faster_than(size_t taken) {
    constexpr size_t kTries = 3;
    for (size_t tries = 0; tries < kTries && taken + 1 < candidates_.count; ++tries) {
      if (!fits(taken + 1)) break;
      ++taken;
    }
    return taken;
  }

  static constexpr double kRoomPerFailure = 0.005;

  const BudgetCandidates& candidates_;
  int64_t budget_bytes_;
  double correction_ = 1.0;  // of expected peaks, by the last one that a plan showed
  int failures_ = 0;
};

}  // namespace

size_t fastest_that_fits(const BudgetCandidates& candidates, int64_t budget_bytes) {
  return FastestSearch(candidates, budget_bytes).run();
}

void choose_for_budget(MemoryChoice& choice, int64_t budget_bytes, const Evaluate& evaluate) {
  BudgetChooser chooser(choice, evaluate);
  std::vector<Candidate> frontier = chooser.frontier();
  const auto peak_of = [&](size_t i) {
    Candidate& candidate = frontier[i];
    if (!candidate.exact) {
      candidate.figures = evaluate(decisions_of(choice, candidate.chosen));
      candidate.exact = true;
    }
    return candidate.figures.peak_bytes;
  };
  choice.minimum_bytes = frontier.front().figures.peak_bytes;
  choice.fits = choice.minimum_bytes <= budget_bytes;
  std::vector<int64_t> expected;
  for (const Candidate& candidate : frontier) expected.push_back(candidate.figures.peak_bytes);
  const BudgetCandidates candidates{frontier.size(), [&](size_t i) { return expected[i]; }, peak_of,
                                    [&](size_t i) { return frontier[i].figures.time_us; }};
  const size_t taken = choice.fits ? fastest_that_fits(candidates, budget_bytes) : 0;
  choice.chosen = frontier[taken].chosen;
  if (frontier[taken].figures.host_bytes > 0)
    choice.on_device = chooser.fastest_on_device(budget_bytes);
  choice.frontier.clear();
  for (const Candidate& candidate : frontier)
    choice.frontier.push_back({decisions_of(choice, candidate.chosen), candidate.figures});
  choice.grown.clear();
  for (const Candidate& candidate : chooser.grown_frontier())
    choice.grown.push_back({decisions_of(choice, candidate.chosen), candidate.figures});
}

}  // namespace ortmodule
