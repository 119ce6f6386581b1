#include "session/planner.h"

#include <algorithm>

#include "lower/lower_ungrouped.h"
#include "optimizer/pipeline.h"
#include "plan/plan_bytes.h"

namespace ortmodule {

Planner::Planner(const Graph& joint, std::shared_ptr<const Lowered> lowered,
                 const SessionOptions& options, StageTimes& times)
    : joint_(joint), options_(options), times_(times), lowered_(std::move(lowered)) {}

const std::shared_ptr<const Lowered>& Planner::lowered() {
  if (!lowered_) lowered_ = packed_->unpacked();
  packed_.reset();
  return lowered_;
}

int64_t Planner::lowered_bytes() const {
  return packed_ ? packed_->size_bytes() : approximate_bytes(*lowered_->graph);
}

void Planner::pack() {
  compared_.clear();
  if (packed_ || plans_.size() > 0 || lowered_.use_count() > 1) return;
  packed_.emplace(*lowered_);
  lowered_.reset();
  last_.reset();  // the graph that is unpacked has nodes of its own
}

std::shared_ptr<const Lowered> Planner::lowered_for(const MemoryDecisions& decisions) {
  const bool freed = options_.memory.gathered_parameters;
  if (decisions.empty() && !freed) return lowered();
  const auto known =
      std::ranges::find(recomputing_, decisions, &decltype(recomputing_)::value_type::first);
  if (known != recomputing_.end()) {
    std::rotate(known, known + 1, recomputing_.end());
    return recomputing_.back().second;
  }
  constexpr size_t kMostLowered = 96;
  if (recomputing_.size() >= kMostLowered) recomputing_.erase(recomputing_.begin());
  const bool group = !options_.optimizer.disabled.contains(std::string(kGroupPointwise));
  const MemoryDecisions all = freed ? with_values_of_parameters(joint_, decisions) : decisions;
  auto lowered = std::make_shared<Lowered>(group ? lower(joint_, options_.device(), all)
                                                 : lower_ungrouped(joint_, options_.device(), all));
  recomputing_.emplace_back(decisions, lowered);
  return lowered;
}

bool Planner::is_lowered(const MemoryDecisions& decisions) const {
  if (decisions.empty() && !options_.memory.gathered_parameters) return true;
  return std::ranges::any_of(recomputing_,
                             [&](const auto& known) { return known.first == decisions; });
}

std::shared_ptr<PlanEntry> Planner::make(const MemoryDecisions& decisions, Signature signature) {
  std::shared_ptr<const Lowered> lowered = lowered_for(decisions);
  StageTimer timer(times_.plan_ms);
  std::shared_ptr<const Plan> plan = compared(decisions, signature);
  compared_.clear();
  auto entry = std::make_shared<PlanEntry>(std::move(plan), std::move(lowered),
                                           std::move(signature), decisions);
  ++times_.plans;
  const int64_t bytes = approximate_bytes(*entry->program.plan);
  plans_.add(entry->signature.key, entry,
             plans_within(options_.plan_cache_bytes, bytes, options_.fewest_plans));
  return entry;
}

const Program& Planner::backward_program(PlanEntry& entry, const std::vector<bool>& arrived,
                                         bool all, bool keep_saved) {
  if (all && !keep_saved) return entry.program;
  std::unique_ptr<Program>& slot = entry.backward[{arrived, keep_saved}];
  if (!slot) {
    if (options_.before_plan) options_.before_plan();
    StageTimer timer(times_.plan_ms);
    const Plan& base = *entry.program.plan;
    const PlanRequest& request = entry.signature.request;
    slot = std::make_unique<Program>(
        all ? make_backward_plan(base, *entry.lowered, request, keep_saved)
            : make_backward_plan(base, prune_lowered(*entry.lowered, arrived), request,
                                 keep_saved));
  }
  return *slot;
}

std::shared_ptr<const Plan> Planner::compared(const MemoryDecisions& decisions,
                                              const Signature& signature) {
  for (const Compared& known : compared_)
    if (known.decisions == decisions && known.key == signature.key) return known.plan;
  const std::shared_ptr<const Plan> earlier = last_.lock();
  std::shared_ptr<const Plan> plan =
      make_plan(*lowered_for(decisions), signature.request, earlier.get());
  last_ = plan;
  constexpr size_t kMostCompared = 4;
  if (compared_.size() >= kMostCompared) compared_.erase(compared_.begin());
  compared_.push_back({decisions, signature.key, plan});
  return plan;
}

std::shared_ptr<const Plan> Planner::shown(const MemoryDecisions& decisions,
                                           const Signature& signature) {
  return make_plan(*lowered_for(decisions), signature.request);
}

int64_t Planner::shrink(int64_t bytes) {
  return plans_.shrink(
      bytes, [](const PlanEntry& entry) { return approximate_bytes(*entry.program.plan); });
}

void Planner::forget_all() {
  plans_.clear();
  compared_.clear();
}

}  // namespace ortmodule
