#include "session/memory_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "optimizer/memory/grown_candidates.h"
#include "plan/replay.h"
#include "plan/step_cost.h"

namespace ortmodule {
namespace {

bool same_sizes(const SymbolValues& a, const SymbolValues& b) { return a.entries() == b.entries(); }

}  // namespace

MemoryPolicy::MemoryPolicy(const Graph& joint, const SessionOptions& options, Planner& planner,
                           StageTimes& times)
    : joint_(joint), options_(options), planner_(planner), times_(times) {}

MemoryDecisions MemoryPolicy::decide(const Signature& asked) {
  const MemoryOptions& options = options_.memory;
  if (!options_.training()) return {};
  if (!first_) {
    first_ = asked;
    if (options.asked()) choose(asked);
  }
  if (!choice_) return {};
  if (options.level > 0 && is_outgrown_by(asked)) {
    first_ = asked;
    choose(asked);
  }
  const bool known_shape = same_sizes(asked.request.symbols, choice_->sizes);
  const bool relative = options.budget_fraction.has_value();
  const int64_t without =
      known_shape || !relative ? choice_->before.peak_bytes : bytes_with({}, asked).peak_bytes;
  const std::optional<int64_t> budget = budget_of(options, share_, without);
  if (!budget) {
    if (fits_host(choice_->decisions, asked)) return choice_->decisions;
    return chosen_for(asked)->decisions;
  }
  if (!known_shape) {
    const double grown = share_.growth * static_cast<double>(*budget);
    return fit_to_budget(asked, static_cast<int64_t>(grown));
  }
  if (choice_->fits) return choice_->decisions;
  const bool mid_training = options.mid_training || accumulates_ || derived_;
  const bool first = corrections_ == 0 && share_.others_bytes == 0 && !mid_training;
  return lowest_peak_of(choice_->frontier.front().decisions, choice_->minimum_bytes, *budget,
                        first || options.strict);
}

MemoryDecisions MemoryPolicy::fit_to_budget(const Signature& asked, int64_t budget_bytes) {
  // The budget was divided for the plans that the pieces have now: a faster plan of this one would
  // use bytes that others need.
  if (share_.others_bytes != 0 && bytes_with(choice_->decisions, asked).peak_bytes <= budget_bytes)
    return choice_->decisions;
  // The closest shape comes first, since its expectations are the best.
  std::ranges::sort(searched_, {}, [&](const Searched& searched) {
    return std::abs(std::log(growth_from(*searched.choice, asked)));
  });
  Fit least;
  for (Searched& searched : searched_) {
    const Fit fit = fit_with(searched, asked, budget_bytes);
    if (fit.peak_bytes <= budget_bytes) return *fit.decisions;
    if (!least.decisions || fit.peak_bytes < least.peak_bytes) least = fit;
  }
  // No known plan fits: optimize for these shapes, which takes as long as the first time. Where
  // that hardly lowered the peak of other shapes, it is not tried again.
  const auto least_bytes = static_cast<double>(std::max<int64_t>(least.peak_bytes, 1));
  if (search_gain_ * least_bytes > static_cast<double>(budget_bytes))
    return lowest_peak_of(*least.decisions, least.peak_bytes, budget_bytes, options_.memory.strict);
  const std::shared_ptr<const MemoryChoice> own = chosen_for(asked);
  std::erase_if(searched_, [&](const Searched& searched) { return searched.choice != choice_; });
  searched_.push_back({own});
  if (own->fits) return own->decisions;
  search_gain_ = std::min(1.0, static_cast<double>(own->minimum_bytes) / least_bytes);
  return lowest_peak_of(own->frontier.front().decisions, own->minimum_bytes, budget_bytes,
                        options_.memory.strict);
}

MemoryPolicy::Fit MemoryPolicy::fit_with(Searched& searched, const Signature& asked,
                                         int64_t budget_bytes) {
  OtherShapes shapes{growth_from(*searched.choice, asked), searched.error, budget_bytes, {}, {}};
  shapes.is_ready = [&](const MemoryDecisions& decisions) {
    return planner_.is_lowered(decisions);
  };
  shapes.peak_bytes = [&](const MemoryDecisions& decisions) {
    constexpr int64_t kTooMuch = std::numeric_limits<int64_t>::max() / 2;
    return fits_host(decisions, asked) ? bytes_with(decisions, asked).peak_bytes : kTooMuch;
  };
  const GrownCandidate taken = fastest_grown(*searched.choice, shapes);
  if (fits_host(taken.point->decisions, asked))
    searched.error *= static_cast<double>(taken.peak_bytes) /
                      static_cast<double>(std::max<int64_t>(taken.expected_bytes, 1));
  return {&taken.point->decisions, taken.peak_bytes};
}

double MemoryPolicy::growth_from(const MemoryChoice& choice, const Signature& asked) const {
  const auto own = static_cast<double>(std::max<int64_t>(stash_bytes(choice.sizes), 1));
  return std::max(static_cast<double>(stash_bytes(asked.request.symbols)) / own, 1e-6);
}

MemoryDecisions MemoryPolicy::lowest_peak_of(const MemoryDecisions& decisions, int64_t least_bytes,
                                             int64_t budget_bytes, bool fatal) {
  const MemoryOptions& options = options_.memory;
  const int64_t whole = options.budget_bytes.value_or(budget_bytes);
  // Other pieces hold the rest of the budget while this one runs.
  const int64_t others = std::max<int64_t>(whole - budget_bytes, 0);
  const BudgetShortfall found{whole, least_bytes + others, others > 0};
  if (fatal) throw Error(over_budget_text(options, found));
  if (!share_.lenient) shortfall_ = found;
  return decisions;
}

bool MemoryPolicy::fits_host(const MemoryDecisions& decisions, const Signature& asked) {
  const std::optional<int64_t> limit = options_.memory.host_budget_bytes;
  return decisions.offload.empty() || !limit || bytes_with(decisions, asked).host_bytes <= *limit;
}

bool MemoryPolicy::is_outgrown_by(const Signature& asked) const {
  return stash_bytes(asked.request.symbols) > 2 * stash_bytes(choice_->sizes);
}

int64_t MemoryPolicy::stash_bytes(const SymbolValues& sizes) const {
  int64_t bytes = 0;
  for (const Stash& stash : choice_->stashes) bytes += stash.bytes.evaluate(sizes);
  return bytes;
}

void MemoryPolicy::set_budget_share(const BudgetShare& share) {
  if (!options_.memory.budget_bytes) return;
  const bool changed = share.others_bytes != share_.others_bytes;
  share_ = share;
  if (!changed) return;
  planner_.forget_all();
  choose_again();
}

void MemoryPolicy::assume_accumulation() {
  if (std::exchange(accumulates_, true)) return;
  planner_.forget_all();
  choose_again();
}

void MemoryPolicy::assume_derived(const SymbolValues& sizes, int64_t bytes) {
  if (derived_ || !options_.memory.asked()) return;
  derived_ = {sizes, bytes};
  planner_.forget_all();
  choose_again();
}

int64_t MemoryPolicy::derived_bytes(const SymbolValues& sizes) const {
  if (!derived_) return 0;
  const auto& [known, bytes] = *derived_;
  if (!choice_ || same_sizes(sizes, known)) return bytes;
  // They grow like the activations that forward may save.
  const auto base = static_cast<double>(std::max<int64_t>(stash_bytes(known), 1));
  return static_cast<int64_t>(static_cast<double>(bytes) * static_cast<double>(stash_bytes(sizes)) /
                              base);
}

bool MemoryPolicy::exceeds_plan(int64_t planned_bytes, int64_t measured_bytes) {
  constexpr double kBand = 1.005;
  return static_cast<double>(measured_bytes) > kBand * static_cast<double>(planned_bytes);
}

void MemoryPolicy::observe_peak(PlanEntry& entry, int64_t planned_bytes, int64_t measured_bytes) {
  // The bound ends this if measured peaks never settle.
  constexpr int kMostCorrections = 100, kMostWarnings = 3;
  if (corrections_ == kMostCorrections || entry.outdated.exchange(true)) return;
  if (++corrections_ > kMostWarnings) return;
  warnings_.push_back(
      str("a step took ", measured_bytes, " bytes at its peak where ", planned_bytes,
          " were planned, since torch operators allocated more than they declare; the next step of "
          "these shapes gets a new plan with the bytes that were measured",
          corrections_ == kMostWarnings ? ". Further cases are not reported" : ""));
}

void MemoryPolicy::choose_again() {
  planner_.forget_compared();
  search_gain_ = 0.0;
  // Without training there is no first shape, and nothing is chosen.
  if (first_ && options_.memory.asked()) choose(*first_);
}

std::vector<std::string> MemoryPolicy::take_warnings() { return std::exchange(warnings_, {}); }

std::optional<BudgetShortfall> MemoryPolicy::take_shortfall() {
  return std::exchange(shortfall_, std::nullopt);
}

void MemoryPolicy::choose(const Signature& asked) {
  choice_ = chosen_for(asked);
  searched_ = {{choice_}};
}

std::shared_ptr<const MemoryChoice> MemoryPolicy::chosen_for(const Signature& asked) {
  StageTimer timer(times_.optimize_memory_ms);
  ++searches_;
  return std::make_shared<MemoryChoice>(choose_memory_plan(
      joint_, options_.memory, share_, asked.request.symbols,
      [&](const MemoryDecisions& decisions) { return figures_with(decisions, asked); }));
}

PlanFigures MemoryPolicy::bytes_with(const MemoryDecisions& decisions, const Signature& asked) {
  const Plan& plan = *planner_.compared(decisions, asked);
  PlanFigures figures{plan.peak_bytes, replay(plan, ReplayMode::Accumulate).peak_bytes,
                      plan.saved_bytes, 0.0, plan.host_bytes};
  if (const int64_t derived = derived_bytes(asked.request.symbols)) {
    // Steps without them may come, too, as with a penalty that is computed now and then.
    const int64_t peak = plan.saved_bytes + derived;
    figures.peak_bytes = std::max(figures.peak_bytes, peak);
    figures.accumulating_peak_bytes = std::max(figures.accumulating_peak_bytes, peak);
  }
  if (accumulates_)
    figures.peak_bytes =
        std::max(figures.peak_bytes, figures.accumulating_peak_bytes + gradient_bytes(plan));
  return figures;
}

PlanFigures MemoryPolicy::figures_with(const MemoryDecisions& decisions, const Signature& asked) {
  PlanFigures figures = bytes_with(decisions, asked);
  const Plan& plan = *planner_.compared(decisions, asked);
  figures.time_us = estimated_us(plan, options_.memory.rates);
  const auto derived = static_cast<double>(plan.saved_bytes + derived_bytes(asked.request.symbols));
  const std::vector<int64_t> once = grown_peaks(plan, ReplayMode::Once, kGrowths);
  const std::vector<int64_t> again = grown_peaks(plan, ReplayMode::Accumulate, kGrowths);
  const int64_t beside = gradient_bytes(plan);
  for (size_t g = 0; g < kGrowths.size(); ++g) {
    int64_t& peak = figures.grown_peak_bytes[g];
    peak = once[g];
    if (derived_) peak = std::max(peak, static_cast<int64_t>(kGrowths[g] * derived));
    if (accumulates_) peak = std::max(peak, again[g] + beside);
  }
  return figures;
}

std::shared_ptr<const MemoryChoice> MemoryPolicy::choice() {
  if (!choice_ && first_) choose(*first_);
  return choice_;
}

MemoryChoice MemoryPolicy::choice_in(const PlanEntry& entry) {
  const std::shared_ptr<const MemoryChoice> first = choice();
  ORTM_CHECK(first, "[memory] a training forward must have run before its choice is shown");
  MemoryChoice shown = *first;
  const Signature& asked = entry.signature;
  if (same_sizes(asked.request.symbols, shown.sizes)) return shown;
  shown.sizes = asked.request.symbols;
  if (entry.decisions != shown.decisions) apply_decisions(shown, entry.decisions);
  shown.before = figures_with({}, asked);
  shown.after = shown.decisions.empty() ? shown.before : figures_with(shown.decisions, asked);
  return shown;
}

const Signature& MemoryPolicy::shapes_or_first(const Signature* shapes) const {
  ORTM_CHECK(first_, "[memory] a forward must have run before plans are compared or shown");
  return shapes ? *shapes : *first_;
}

PlanFigures MemoryPolicy::figures_of(const MemoryDecisions& decisions, const Signature* shapes) {
  return figures_with(decisions, shapes_or_first(shapes));
}

std::shared_ptr<const Plan> MemoryPolicy::plan_with(const MemoryDecisions& decisions,
                                                    const Signature* shapes) {
  return planner_.shown(decisions, shapes_or_first(shapes));
}

}  // namespace ortmodule
