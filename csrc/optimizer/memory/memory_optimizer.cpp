#include "optimizer/memory/memory_optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "optimizer/memory/budget.h"
#include "optimizer/memory/offload.h"

namespace ortmodule {
namespace {

using Chosen = std::vector<std::optional<Strategy>>;

/// Drops the subgraphs whose kept operands take as much memory as they free.
void drop_useless_subgraphs(MemoryChoice& choice, const SymbolValues& sizes) {
  for (Stash& stash : choice.stashes) {
    std::erase_if(stash.subgraphs, [&](const RecomputeSubgraph& subgraph) {
      return subgraph.saving_bytes.evaluate(sizes) <= 0;
    });
    if (stash.subgraphs.empty() && stash.refusal.empty())
      stash.refusal = "the operands to keep for recomputation take as much memory";
  }
}

void list_rows(MemoryChoice& choice, const SymbolValues& sizes) {
  std::map<std::pair<std::string, Strategy>, size_t> known;
  for (size_t s = 0; s < choice.stashes.size(); ++s) {
    for (const RecomputeSubgraph& subgraph : choice.stashes[s].subgraphs) {
      const auto [at, is_new] =
          known.try_emplace({subgraph.cluster_id, subgraph.strategy}, choice.rows.size());
      if (is_new) choice.rows.push_back({subgraph.cluster_id, subgraph.strategy, {}, 0, {}, {}});
      ClusterRow& row = choice.rows[at->second];
      row.stashes.push_back(s);
      row.saving_bytes = row.saving_bytes + subgraph.saving_bytes;
    }
  }
  std::stable_sort(choice.rows.begin(), choice.rows.end(),
                   [&](const ClusterRow& a, const ClusterRow& b) {
                     return a.saving_bytes.evaluate(sizes) > b.saving_bytes.evaluate(sizes);
                   });
}

/// Splits a stash of which only some values cross a layer boundary: those are kept, the others can
/// be recomputed from them.
void split_at_boundaries(MemoryChoice& choice) {
  std::unordered_set<const Value*> crossing;
  for (const LayerGroup& group : choice.layers.groups)
    crossing.insert(group.boundaries.begin(), group.boundaries.end());
  std::vector<Stash> result;
  for (Stash& stash : choice.stashes) {
    Stash rest = stash;
    std::erase_if(rest.values, [&](const Value* v) { return crossing.contains(v); });
    std::erase_if(stash.values, [&](const Value* v) { return !crossing.contains(v); });
    for (Stash* part : {&stash, &rest}) {
      if (part->values.empty()) continue;
      const DimExpr whole = part->bytes;
      part->bytes = DimExpr(0);
      for (const Value* value : part->values) part->bytes = part->bytes + bytes_of(*value);
      for (RecomputeSubgraph& subgraph : part->subgraphs)
        subgraph.saving_bytes = subgraph.saving_bytes - whole + part->bytes;
      result.push_back(std::move(*part));
    }
  }
  choice.stashes = std::move(result);
}

void apply_config(MemoryChoice& choice, const std::vector<ConfigElement>& config) {
  std::map<std::string, ConfigElement> last;  // the last element of an id wins
  for (const ConfigElement& element : config) last[element.cluster_id] = element;
  for (const auto& [id, element] : last) {
    if (element.strategy == Strategy::None) continue;
    const auto row = std::find_if(choice.rows.begin(), choice.rows.end(), [&](const ClusterRow& r) {
      return r.cluster_id == id && r.strategy == element.strategy;
    });
    if (row == choice.rows.end()) continue;
    const size_t wanted = element.count < 0
                              ? row->stashes.size()
                              : std::min(row->stashes.size(), static_cast<size_t>(element.count));
    for (size_t i = 0; i < wanted; ++i) choice.chosen[row->stashes[i]] = element.strategy;
  }
}

/// Starts from everything that the level recomputes, then keeps what costs more time than its
/// memory is worth.
class LevelChooser {
 public:
  LevelChooser(MemoryChoice& choice, const Evaluate& evaluate)
      : choice_(choice), evaluate_(evaluate) {}

  void run(int level) {
    Chosen chosen = level_candidates(choice_, level);
    PlanFigures best = figures(chosen);
    // Without layers, backward would recompute all of forward at once: search by rows instead.
    if (!gains(best)) std::tie(chosen, best) = least_peak(choice_, evaluate_);
    if (!gains(best)) {
      for (ClusterRow& row : choice_.rows)
        row.reason = "no gain: saved activations do not determine the peak of this model";
      choice_.warnings.push_back(str("recomputation would not lower the peak of this model (",
                                     best.peak_bytes, " bytes with it, ", choice_.before.peak_bytes,
                                     " without), so nothing is recomputed"));
      return;
    }
    least_ = best;
    std::vector<std::vector<size_t>> groups = {after_the_last_layer()};
    for (const ClusterRow& row : choice_.rows) groups.push_back(row.stashes);
    sort_by_gain(groups, chosen);
    // Keeping one group can make it worth keeping another that was rejected before.
    for (double last_us = 0.0; best.time_us != last_us;) {
      last_us = best.time_us;
      for (const std::vector<size_t>& group : groups) drop_without_gain(chosen, best, group);
      drop_late_layers(chosen, best);
    }
    for (ClusterRow& row : choice_.rows)
      if (std::none_of(row.stashes.begin(), row.stashes.end(),
                       [&](size_t s) { return !!chosen[s]; }))
        row.reason = "no gain: it hardly lowers the peak";
    choice_.chosen = std::move(chosen);
  }

 private:
  bool gains(const PlanFigures& now) const {
    const PlanFigures& before = choice_.before;
    const auto is_lower = [](int64_t a, int64_t b) { return a < b - b / kLeastGain; };
    return now.peak_bytes <= before.peak_bytes &&
           (is_lower(now.peak_bytes, before.peak_bytes) ||
            is_lower(now.accumulating_peak_bytes, before.accumulating_peak_bytes));
  }

  // As 1/n of the peak without recomputation: a smaller gain is not worth recomputing anything.
  static constexpr int64_t kLeastGain = 100;
  // Tolerances, as 1/n of the lowest peak: growth accepted for any saving of time, and the limit
  // of growth.
  static constexpr int64_t kAlwaysAccept = 64, kNeverExceed = 10;
  // As 1/n of the bytes saved: the limit of what is given up for time.
  static constexpr int64_t kGivenBack = 4;
  // Late layers are tried in this many chunks: a plan per chunk takes milliseconds.
  static constexpr size_t kChunks = 16;

  PlanFigures figures(const Chosen& chosen) const {
    return evaluate_(decisions_of(choice_, chosen));
  }

  // Relative growth of the peak, the larger of a step that makes gradients and one that
  // accumulates.
  static double growth(const PlanFigures& now, const PlanFigures& before) {
    const auto part = [](int64_t a, int64_t b) {
      return static_cast<double>(a) / static_cast<double>(std::max<int64_t>(b, 1)) - 1.0;
    };
    return std::max(part(now.peak_bytes, before.peak_bytes),
                    part(now.accumulating_peak_bytes, before.accumulating_peak_bytes));
  }

  /// Which growth of the peak is tolerated: a small one always, a larger one only to save time.
  enum class Room : uint8_t { Always, ForTime };
  static bool has_room(int64_t now, int64_t least, int64_t before, Room room) {
    const int64_t slack = least / kAlwaysAccept,
                  most = std::min(least / kNeverExceed, (before - least) / kGivenBack);
    return now - least <= (room == Room::Always ? slack : std::max(slack, most));
  }
  bool has_room(const PlanFigures& now, Room room) const {
    const PlanFigures& before = choice_.before;
    return has_room(now.peak_bytes, least_.peak_bytes, before.peak_bytes, room) &&
           has_room(now.accumulating_peak_bytes, least_.accumulating_peak_bytes,
                    before.accumulating_peak_bytes, room);
  }

  /// Accepts a small growth of the peak for any saving of time, a larger one if the relative saving
  /// of time is at least the relative growth.
  bool is_worth(const PlanFigures& now, const PlanFigures& best) const {
    const double saved_time = 1.0 - now.time_us / best.time_us;
    if (saved_time < 0.0) return false;
    return has_room(now, Room::Always) ||
           (has_room(now, Room::ForTime) && growth(now, best) <= saved_time);
  }

  /// Stashes after the last layer boundary, such as the loss head's: backward needs them first.
  std::vector<size_t> after_the_last_layer() const {
    const std::vector<bool> boundary = boundary_stashes(choice_);
    std::vector<size_t> members;
    for (size_t s = choice_.stashes.size(); s-- > 0 && !boundary[s];) members.push_back(s);
    return members.size() == choice_.stashes.size() ? std::vector<size_t>() : members;
  }

  static Chosen without(Chosen chosen, const std::vector<size_t>& group) {
    for (size_t s : group) chosen[s].reset();
    return chosen;
  }

  /// Sorts by the time of the step if the group is kept: the largest savings are tried first.
  void sort_by_gain(std::vector<std::vector<size_t>>& groups, const Chosen& chosen) const {
    std::vector<std::pair<double, std::vector<size_t>>> ranked;
    for (std::vector<size_t>& group : groups) {
      const double time_us = figures(without(chosen, group)).time_us;
      ranked.emplace_back(time_us, std::move(group));
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < groups.size(); ++i) groups[i] = std::move(ranked[i].second);
  }

  /// Keeps the stashes of `group` if the time saved is worth the memory. False if it is not.
  bool drop_without_gain(Chosen& chosen, PlanFigures& best, const std::vector<size_t>& group) {
    Chosen fewer = without(chosen, group);
    if (fewer == chosen) return true;
    const PlanFigures now = figures(fewer);
    if (!is_worth(now, best)) return false;
    chosen = std::move(fewer);
    best = now;
    return true;
  }

  // Recomputing the last layers gains little: backward starts with them and needs their values at
  // once.
  void drop_late_layers(Chosen& chosen, PlanFigures& best) {
    const size_t step = std::max<size_t>(chosen.size() / kChunks, 1);
    for (size_t end = chosen.size(); end > 0; end -= std::min(end, step)) {
      std::vector<size_t> chunk(std::min(end, step));
      std::iota(chunk.begin(), chunk.end(), end - chunk.size());
      if (!drop_without_gain(chosen, best, chunk)) return;
    }
  }

  MemoryChoice& choice_;
  const Evaluate& evaluate_;
  PlanFigures least_;
};

/// Removes the subgraphs of clusters with strategy 0, so that a budget cannot choose them.
void forbid(MemoryChoice& choice, const std::vector<ConfigElement>& config) {
  for (const ConfigElement& element : config) {
    if (element.strategy != Strategy::None) continue;
    for (Stash& stash : choice.stashes)
      std::erase_if(stash.subgraphs, [&](const RecomputeSubgraph& subgraph) {
        return subgraph.cluster_id == element.cluster_id;
      });
    for (ClusterRow& row : choice.rows)
      if (row.cluster_id == element.cluster_id) row.reason = "the configuration forbids it";
  }
}

void finish(MemoryChoice& choice, const MemoryOptions& options, const Evaluate& evaluate) {
  choice.decisions = decisions_of(choice, choice.chosen);
  choice.after = choice.decisions.empty() ? choice.before : evaluate(choice.decisions);
  for (ClusterRow& row : choice.rows) {
    row.applied =
        static_cast<size_t>(std::count_if(row.stashes.begin(), row.stashes.end(), [&](size_t s) {
          return choice.chosen[s] == row.strategy;
        }));
    if (options.level == 0 && !options.config.empty() && row.applied > 0) {
      Chosen without = choice.chosen;
      for (size_t s : row.stashes) without[s].reset();
      if (evaluate(decisions_of(choice, without)).peak_bytes <= choice.after.peak_bytes)
        choice.warnings.push_back(str("'", row.cluster_id, ":", static_cast<int>(row.strategy),
                                      "' is applied as configured, but does not lower the peak"));
    }
  }
}

}  // namespace

double grown_peak(const PlanFigures& figures, double growth) {
  size_t next = 1;
  while (next + 1 < kGrowths.size() && kGrowths[next] < growth) ++next;
  const auto from = static_cast<double>(figures.grown_peak_bytes[next - 1]);
  const auto to = static_cast<double>(figures.grown_peak_bytes[next]);
  return from + (to - from) * (growth - kGrowths[next - 1]) / (kGrowths[next] - kGrowths[next - 1]);
}

Chosen level_candidates(const MemoryChoice& choice, int level) {
  Chosen chosen(choice.stashes.size());
  const std::vector<bool> kept = boundary_stashes(choice);
  for (size_t s = 0; s < choice.stashes.size(); ++s) {
    const Stash& stash = choice.stashes[s];
    if (!kept[s] && subgraph_of(stash, Strategy::Recompute)) {
      chosen[s] = Strategy::Recompute;
    } else if (level >= 2 && subgraph_of(stash, Strategy::Compromise)) {
      chosen[s] = Strategy::Compromise;
    }
  }
  return chosen;
}

MemoryDecisions decisions_of(const MemoryChoice& choice, const Chosen& chosen) {
  MemoryDecisions decisions;
  std::unordered_set<const Value*> dropped;
  std::vector<const Value*> keep;
  for (size_t s = 0; s < chosen.size(); ++s) {
    if (!chosen[s]) continue;
    const RecomputeSubgraph* subgraph = subgraph_of(choice.stashes[s], *chosen[s]);
    ORTM_ASSERT(subgraph, "a stash is recomputed without a subgraph");
    const bool offloads = *chosen[s] == Strategy::Offload;
    for (const Value* value : offloads ? subgraph->moved : choice.stashes[s].values) {
      dropped.insert(value);
      (offloads ? decisions.offload : decisions.recompute).push_back(value->id());
    }
    keep.insert(keep.end(), subgraph->keep.begin(), subgraph->keep.end());
  }
  if (decisions.recompute.empty()) return decisions;
  // Layer boundaries are kept even where backward does not read them.
  if (choice.keep_boundaries)
    for (const LayerGroup& group : choice.layers.groups)
      keep.insert(keep.end(), group.boundaries.begin(), group.boundaries.end());
  for (const Value* value : keep) {
    const bool known = std::find(decisions.keep.begin(), decisions.keep.end(), value->id()) !=
                       decisions.keep.end();
    if (!known && !dropped.contains(value)) decisions.keep.push_back(value->id());
  }
  return decisions;
}

void apply_decisions(MemoryChoice& choice, const MemoryDecisions& decisions) {
  const auto in = [](const std::vector<int>& ids, const Value* value) {
    return std::find(ids.begin(), ids.end(), value->id()) != ids.end();
  };
  choice.decisions = decisions;
  for (size_t s = 0; s < choice.stashes.size(); ++s) {
    const Stash& stash = choice.stashes[s];
    choice.chosen[s].reset();
    const RecomputeSubgraph* moved = subgraph_of(stash, Strategy::Offload);
    if (moved && in(decisions.offload, moved->moved.front())) choice.chosen[s] = Strategy::Offload;
    if (!in(decisions.recompute, stash.values.front())) continue;
    // Strategy 2 is recognized by the narrow operand that it keeps.
    const RecomputeSubgraph* narrow = subgraph_of(stash, Strategy::Compromise);
    const bool keeps = narrow && std::all_of(narrow->keep.begin(), narrow->keep.end(),
                                             [&](const Value* v) { return in(decisions.keep, v); });
    const bool is_narrow = keeps || !subgraph_of(stash, Strategy::Recompute);
    choice.chosen[s] = is_narrow ? Strategy::Compromise : Strategy::Recompute;
  }
  for (ClusterRow& row : choice.rows)
    row.applied =
        static_cast<size_t>(std::count_if(row.stashes.begin(), row.stashes.end(), [&](size_t s) {
          return choice.chosen[s] == row.strategy;
        }));
}

MemoryChoice choose_memory_plan(const Graph& joint, const MemoryOptions& options,
                                const BudgetShare& share, const SymbolValues& sizes,
                                const Evaluate& evaluate) {
  MemoryChoice choice;
  choice.sizes = sizes;
  choice.stashes = find_stashes(joint);
  choice.before = choice.after = evaluate({});
  const bool budget = options.budget_bytes || options.budget_fraction;
  choice.layers = find_layers(joint, sizes);
  if (options.level > 0 || budget) split_at_boundaries(choice);
  drop_useless_subgraphs(choice, sizes);
  if (options.offload && options.level == 0) {
    choice.host_budget_bytes = options.host_budget_bytes;
    offer_offload(choice, options.rates, sizes);
  }
  list_rows(choice, sizes);
  choice.chosen.assign(choice.stashes.size(), std::nullopt);
  if (!options.asked()) return choice;
  choice.keep_boundaries = options.level > 0 || budget;
  if (options.level > 0) {
    const Evaluate beside_others = [&](const MemoryDecisions& decisions) {
      PlanFigures figures = evaluate(decisions);
      const int64_t held = options.other_runs * figures.saved_bytes;
      figures.peak_bytes += held;
      figures.accumulating_peak_bytes += held;
      return figures;
    };
    const PlanFigures alone = std::exchange(choice.before, beside_others({}));
    LevelChooser(choice, beside_others).run(options.level);
    choice.before = alone;
  } else if (budget) {
    forbid(choice, options.config);
    choose_for_budget(choice, *budget_of(options, share, choice.before.peak_bytes), evaluate);
  } else {
    apply_config(choice, options.config);
    keep_within_host_budget(choice, sizes);
  }
  finish(choice, options, evaluate);
  return choice;
}

std::optional<int64_t> budget_of(const MemoryOptions& options, const BudgetShare& share,
                                 int64_t peak_bytes) {
  if (options.budget_bytes) return *options.budget_bytes - share.others_bytes;
  if (!options.budget_fraction) return std::nullopt;
  return static_cast<int64_t>(*options.budget_fraction * static_cast<double>(peak_bytes));
}

std::string over_budget_text(const MemoryOptions& options, const BudgetShortfall& found) {
  const int64_t reserved = options.reserved_bytes;
  const int64_t needed = found.step_bytes + reserved;
  std::string text =
      str("[memory budget] the step must fit ", found.budget_bytes + reserved, " bytes");
  if (options.budget_fraction)
    text += str(" (", std::lround(*options.budget_fraction * 100), "% of its peak)");
  text += str(", but found that it takes ", found.has_pieces ? "" : "at least ", needed,
              " with this batch");
  if (reserved > 0)
    text += str(" (", reserved, " of them for parameters, buffers and optimizer state)");
  text += "; use ";
  if (options.budget_fraction) {
    // The budget was rounded down to whole bytes.
    const auto budget = static_cast<double>(std::max<int64_t>(found.budget_bytes, 1));
    const double share = *options.budget_fraction * static_cast<double>(found.step_bytes) / budget;
    const double percent = std::ceil(100 * share * (1 - 1 / budget));
    return text + str("a budget of at least ", static_cast<int64_t>(percent), "%");
  }
  return text + str("a smaller batch", found.has_pieces ? ", fewer graph breaks," : "",
                    " or a budget of at least ", needed, " bytes");
}

}  // namespace ortmodule
