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

class SubgraphFinder {
 public:
  explicit SubgraphFinder(const Graph& joint)
      : stashed_(stashed_values(joint)), returned_(returned_values(joint)), gradient_(joint) {
    int position = 0;
    for (const auto& node : joint.nodes()) position_[node.get()] = position++;
  }

  bool is_stashed(const Value* value) const { return stashed_[value]; }
  bool is_returned(const Value* value) const { return returned_[value]; }

  /// The subgraph that recomputes `stash`; without nodes, and `refusal` set, if there is none.
  RecomputeSubgraph find(const Stash& stash, Strategy strategy, std::string* refusal) {
    RecomputeSubgraph subgraph;
    subgraph.strategy = strategy;
    if (is_impure(*stash.node)) {
      *refusal = str(stash.node->op, " has side effects or unrecorded random numbers");
      return subgraph;
    }
    if (is_always_kept(*stash.values.front())) {
      *refusal = str("the states of ", stash.node->op, " would need all steps again");
      return subgraph;
    }
    subgraph_ = &subgraph;
    seen_.clear();
    compromised_ = false;
    include(stash.node);
    if (strategy == Strategy::Compromise && !compromised_) {
      *refusal = "no widening cast in the subgraph";
      subgraph.nodes.clear();
      return subgraph;
    }
    std::sort(subgraph.nodes.begin(), subgraph.nodes.end(),
              [&](const Node* a, const Node* b) { return position_.at(a) < position_.at(b); });
    for (const Node* node : subgraph.nodes)
      if (node == stash.node || gradient_.contains(node->output()))
        subgraph.cluster_id += node->op + "+";
    subgraph.saving_bytes = stash.bytes;
    for (const Value* kept : subgraph.keep)
      subgraph.saving_bytes = subgraph.saving_bytes - bytes_of(*kept);
    return subgraph;
  }

 private:
  void include(const Node* node) {
    if (!seen_.insert(node).second) return;
    subgraph_->nodes.push_back(node);
    if (subgraph_->strategy == Strategy::Compromise && widens(*node)) {
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
    if (op_def(node->op).recompute.empty()) return;
    for (const Value* output : node->outputs())  // from these the others are computed again
      if (output->output_index() == 0 && !is_stashed(output) && !is_returned(output)) keep(output);
  }

  void reach(const Value* value) {
    const Value* source = storage_root(value);
    include_views(value, source);
    const Node* producer = source->producer();
    if (!producer || is_stashed(source) || is_returned(source)) return;
    if (is_always_kept(*source)) {
      keep(source);
      return;
    }
    include(producer);
  }

  void include_views(const Value* from, const Value* to) {
    // A view that backward reads already exists there.
    for (const Value* value = from; value != to; value = alias_of(value)) {
      const auto& uses = value->uses();
      const bool read = std::any_of(uses.begin(), uses.end(),
                                    [](Use use) { return use.node->region == Region::Backward; });
      if (read) return;
      if (seen_.insert(value->producer()).second) subgraph_->nodes.push_back(value->producer());
    }
  }

  void keep(const Value* value) {
    if (std::find(subgraph_->keep.begin(), subgraph_->keep.end(), value) == subgraph_->keep.end())
      subgraph_->keep.push_back(value);
  }

  PerValue<bool> stashed_;
  PerValue<bool> returned_;
  Differentiated gradient_;  // values that a gradient flows through
  std::unordered_map<const Node*, int> position_;
  std::unordered_set<const Node*> seen_;
  RecomputeSubgraph* subgraph_ = nullptr;
  bool compromised_ = false;
};

}  // namespace

std::string RecomputeSubgraph::config(int64_t count) const {
  return str(cluster_id, ":", static_cast<int>(strategy), ":", count);
}

DimExpr bytes_of(const Value& value) {
  return product(value.dims) * DimExpr(static_cast<int64_t>(size_of(value.dtype)));
}

std::vector<Stash> find_stashes(const Graph& joint) {
  SubgraphFinder finder(joint);
  std::vector<Stash> stashes;
  for (const auto& node : joint.nodes()) {
    if (node->region == Region::Backward) continue;
    Stash stash;
    stash.node = node.get();
    const auto is_saved = [&](const Value* value) {
      return finder.is_stashed(value) && !finder.is_returned(value);
    };
    // Those that can be computed again, if any.
    const bool some = std::ranges::any_of(node->outputs(), [&](const Value* output) {
      return is_saved(output) && !is_always_kept(*output);
    });
    for (const Value* output : node->outputs()) {
      if (!is_saved(output) || (some && is_always_kept(*output))) continue;
      stash.values.push_back(output);
      stash.bytes = stash.bytes + bytes_of(*output);
    }
    if (stash.values.empty()) continue;
    std::string refusal;
    for (Strategy strategy : {Strategy::Recompute, Strategy::Compromise}) {
      RecomputeSubgraph subgraph = finder.find(stash, strategy, &refusal);
      if (!subgraph.nodes.empty()) stash.subgraphs.push_back(std::move(subgraph));
    }
    if (stash.subgraphs.empty()) stash.refusal = refusal;
    stashes.push_back(std::move(stash));
  }
  return stashes;
}

const RecomputeSubgraph* subgraph_of(const Stash& stash, Strategy strategy) {
  for (const RecomputeSubgraph& subgraph : stash.subgraphs)
    if (subgraph.strategy == strategy) return &subgraph;
  return nullptr;
}

}  // namespace ortmodule
