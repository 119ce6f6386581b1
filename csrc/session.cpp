#include "session.h"

#include <algorithm>
#include <utility>

#include "gradient/build_gradient.h"
#include "gradient/gradient_groups.h"
#include "lower/lower_ungrouped.h"
#include "optimizer/pipeline.h"

namespace ortmodule {
namespace {

// A graph of the same inputs, to bind calls. Constants behind the last of the others bind nothing.
std::unique_ptr<Graph> inputs_alone(const Graph& graph) {
  auto alone = std::make_unique<Graph>();
  const auto end =
      std::find_if(graph.inputs().rbegin(), graph.inputs().rend(),
                   [](const GraphInput& input) { return input.kind != InputKind::Constant; });
  for (auto input = graph.inputs().begin(); input != end.base(); ++input)
    alone->add_input(input->value->name, input->value->dtype, input->value->dims, input->kind,
                     input->requires_grad, input->index);
  return alone;
}

// Takes the nodes of `exported` where nobody reads them again.
std::unique_ptr<Graph> optimized_forward(std::unique_ptr<Graph>& exported,
                                         const SessionOptions& options, PassReport& report,
                                         StageTimes& times) {
  StageTimer timer(times.optimize_forward_ms);
  std::unique_ptr<Graph> forward;
  if (options.keep_graphs || options.training()) {
    forward = exported->clone();
  } else {
    forward = std::move(exported);
    exported = inputs_alone(*forward);
  }
  report = optimize_forward(*forward, options.optimizer);
  return forward;
}

// Takes `forward` where nobody reads it again.
std::unique_ptr<const Graph> optimized_joint(std::unique_ptr<Graph>& forward,
                                             const SessionOptions& options, PassReport& report,
                                             StageTimes& times) {
  std::unique_ptr<Graph> joint;
  {
    StageTimer timer(times.gradient_ms);
    if (options.training())
      joint = build_gradient(*forward);
    else
      joint = options.keep_graphs ? forward->clone() : std::move(forward);
  }
  StageTimer timer(times.optimize_joint_ms);
  report = optimize_joint(*joint, options.optimizer);
  return joint;
}

std::shared_ptr<const Lowered> lowered(const Graph& joint, const SessionOptions& options,
                                       StageTimes& times) {
  StageTimer timer(times.lower_ms);
  const bool group = !options.optimizer.disabled.contains(std::string(kGroupPointwise));
  return std::make_shared<Lowered>(group ? lower(joint, options.device())
                                         : lower_ungrouped(joint, options.device()));
}

std::vector<bool> outputs_with_gradient(const ExportedPiece& piece, const Graph& joint) {
  std::vector<bool> result(piece.output_strides.size(), false);
  for (const GraphInput& input : joint.inputs())
    if (input.kind == InputKind::GradOutput) result[static_cast<size_t>(input.index)] = true;
  return result;
}

}  // namespace

Session::Session(ExportedPiece piece, SessionOptions options)
    : options_(std::move(options)),
      piece_(std::move(piece)),
      argument_count_(piece_.graph->inputs().size()),
      forward_(optimized_forward(piece_.graph, options_, forward_report_, times_)),
      joint_(optimized_joint(forward_, options_, joint_report_, times_)),
      differentiable_outputs_(outputs_with_gradient(piece_, *joint_)),
      symbols_(piece_, argument_count_, *joint_),
      planner_(*joint_, ortmodule::lowered(*joint_, options_, times_), options_, times_),
      memory_(*joint_, options_, planner_, times_) {
  // Without training nothing is recomputed, so the planner and the policy do not read them again.
  if (options_.keep_graphs || options_.training()) return;
  joint_.reset();
  forward_report_ = joint_report_ = {};
}

std::shared_ptr<PlanEntry> Session::plan_for(const CallShapes& call) {
  const std::lock_guard lock(mutex_);
  if (auto latest =
          planner_.latest([&](const PlanKey& key) { return symbols_.is_key_of(call, key); }))
    return latest;
  const PlanKey key = symbols_.key_of(call);
  if (std::shared_ptr<PlanEntry> known = planner_.find(key)) {
    if (!known->outdated) return known;
    planner_.erase(key);
    memory_.choose_again();
  }
  if (options_.before_plan) options_.before_plan();
  Signature signature = signature_of(call);
  const MemoryDecisions decisions = memory_.decide(signature);
  return planner_.make(decisions, std::move(signature));
}

Signature Session::signature_of(const CallShapes& call) const {
  Signature signature = symbols_.signature_of(call);
  if (!options_.training()) signature.request.placement = options_.placement;
  signature.request.rates = options_.memory.rates;
  if (options_.threads) signature.request.threads = std::max<int64_t>(1, options_.threads());
  return signature;
}

std::shared_ptr<const Plan> Session::plan_to_show(const CallShapes& call) {
  const std::lock_guard lock(mutex_);
  if (options_.before_plan) options_.before_plan();
  const Signature signature = signature_of(call);
  return planner_.shown(memory_.decide(signature), signature);
}

int64_t Session::shrink_plans(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  return planner_.shrink(bytes);
}

void Session::pack() {
  const std::lock_guard lock(mutex_);
  planner_.pack();
}

std::shared_ptr<const Lowered> Session::lowered() const {
  const std::lock_guard lock(mutex_);
  return planner_.lowered();
}

int64_t Session::lowered_bytes() const {
  const std::lock_guard lock(mutex_);
  return planner_.lowered_bytes();
}

const Program& Session::backward_program(PlanEntry& entry, const std::vector<bool>& arrived,
                                         bool keep_saved) {
  const bool all = arrived == differentiable_outputs_;
  if (all && !keep_saved) return entry.program;
  const std::lock_guard lock(mutex_);
  return planner_.backward_program(entry, arrived, all, keep_saved);
}

const std::vector<size_t>& Session::gradient_groups() {
  const std::lock_guard lock(mutex_);
  if (gradient_groups_.empty())
    gradient_groups_ = ortmodule::gradient_groups(*joint_, differentiable_outputs_.size());
  return gradient_groups_;
}

BackwardPiece Session::backward_piece(const PlanEntry& entry, const BackwardQuery& query) const {
  return make_backward_piece(*joint_, entry, query);
}

StageTimes Session::times() const {
  const std::lock_guard lock(mutex_);
  return times_;
}

}  // namespace ortmodule
