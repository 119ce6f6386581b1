#include "optimizer/memory/stashes.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "ops/differentiated.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

bool widens(const Node& node) {
  return node.op == "Cast" && node.input(0) &&
         size_of(node.input(0)->dtype) < size_of(node.output()->dtype);
}

class PlanFinder {
 public:
  explicit PlanFinder(const Graph& joint)
      : stashed_(stashed_values(joint)), returned_(returned_values(joint)), gradient_(joint) {
    int position = 0;
    for (const auto& node : joint.nodes()) position_[node.get()] = position++;
  }

  bool is_stashed(const Value* value) const { return stashed_[value]; }
  bool is_returned(const Value* value) const { return returned_[value]; }

  /// The plan of `stash` by `strategy`; empty nodes if there is none, with the reason in `refusal`.
  RecomputePlan find(const Stash& stash, Strategy strategy, std::string* refusal) {
    RecomputePlan plan;
    plan.strategy = strategy;
    if (is_impure(*stash.node)) {
      *refusal = str(stash.node->op, " has effects or draws numbers that nobody recorded");
      return plan;
    }
    plan_ = &plan;
    seen_.clear();
    compromised_ = false;
    include(stash.node);
    if (strategy == Strategy::Compromise && !compromised_) {
      *refusal = "no widening cast on the way";
      plan.nodes.clear();
      return plan;
    }
    std::sort(plan.nodes.begin(), plan.nodes.end(),
              [&](const Node* a, const Node* b) { return position_.at(a) < position_.at(b); });
    for (const Node* node : plan.nodes)
      if (node == stash.node || gradient_.contains(node->output()))
        plan.cluster_id += node->op + "+";
    plan.saving_bytes = stash.bytes;
    for (const Value* kept : plan.keep) plan.saving_bytes = plan.saving_bytes - bytes_of(*kept);
    return plan;
  }

 private:
  void include(const Node* node) {
    if (!seen_.insert(node).second) return;
    plan_->nodes.push_back(node);
    if (plan_->strategy == Strategy::Compromise && widens(*node)) {
      const Value* narrow = storage_root(node->input(0));
      if (narrow->producer() && !is_stashed(narrow) && !is_returned(narrow)) {
        compromised_ = true;
        include_views(node->input(0), narrow);
        keep(narrow);
        return;
      }
    }
    for (const Value* input : node->inputs())
      if (input && !input->is_literal()) reach(input);
  }

  void reach(const Value* value) {
    const Value* source = storage_root(value);
    include_views(value, source);
    const Node* producer = source->producer();
    if (!producer || is_stashed(source) || is_returned(source)) return;
    if (is_impure(*producer)) {
      keep(source);
      return;
    }
    include(producer);
  }

  void include_views(const Value* from, const Value* to) {
    // A view that backward reads anyway needs no second one.
    for (const Value* value = from; value != to; value = alias_of(value)) {
      const auto& uses = value->uses();
      const bool read = std::any_of(uses.begin(), uses.end(),
                                    [](Use use) { return use.node->region == Region::Backward; });
      if (read) return;
      if (seen_.insert(value->producer()).second) plan_->nodes.push_back(value->producer());
    }
  }

  void keep(const Value* value) {
    if (std::find(plan_->keep.begin(), plan_->keep.end(), value) == plan_->keep.end())
      plan_->keep.push_back(value);
  }

  PerValue<bool> stashed_;
  PerValue<bool> returned_;
  Differentiated gradient_;  // what a gradient flows through
  std::unordered_map<const Node*, int> position_;
  std::unordered_set<const Node*> seen_;
  RecomputePlan* plan_ = nullptr;
  bool compromised_ = false;
};

}  // namespace

std::string RecomputePlan::config(int64_t count) const {
  return str(cluster_id, ":", static_cast<int>(strategy), ":", count);
}

DimExpr bytes_of(const Value& value) {
  return product(value.dims) * DimExpr(static_cast<int64_t>(size_of(value.dtype)));
}

std::vector<Stash> find_stashes(const Graph& joint) {
  PlanFinder finder(joint);
  std::vector<Stash> stashes;
  for (const auto& node : joint.nodes()) {
    if (node->region == Region::Backward) continue;
    Stash stash;
    stash.node = node.get();
    for (const Value* output : node->outputs()) {
      if (!finder.is_stashed(output) || finder.is_returned(output)) continue;
      stash.values.push_back(output);
      stash.bytes = stash.bytes + bytes_of(*output);
    }
    if (stash.values.empty()) continue;
    std::string refusal;
    for (Strategy strategy : {Strategy::Recompute, Strategy::Compromise}) {
      RecomputePlan plan = finder.find(stash, strategy, &refusal);
      if (!plan.nodes.empty()) stash.plans.push_back(std::move(plan));
    }
    if (stash.plans.empty()) stash.refusal = refusal;
    stashes.push_back(std::move(stash));
  }
  return stashes;
}

const RecomputePlan* plan_of(const Stash& stash, Strategy strategy) {
  for (const RecomputePlan& plan : stash.plans)
    if (plan.strategy == strategy) return &plan;
  return nullptr;
}

}  // namespace ortmodule
