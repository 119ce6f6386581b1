// The order of the backward pass. Gradient rules emit the data gradient of a product before its
// weight gradient, which would keep the saved operand allocated beside the data gradient. Therefore
// nodes whose results are only returned run as soon as their operands exist, and the operands can
// be freed. Views of these operands move along: a flattened output gradient exists as soon as the
// gradient does.
#include <algorithm>
#include <ranges>
#include <unordered_map>
#include <unordered_set>

#include "lower/lower.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

/// Whether the node's results are only returned, directly or through views.
bool is_final(const Node& node, const std::unordered_map<const Node*, bool>& final_views) {
  bool output = false;
  for (const Value* value : node.outputs()) {
    output = output || value->is_graph_output();
    for (const Use& use : value->uses()) {
      auto view = final_views.find(use.node);
      if (view == final_views.end() || !view->second) return false;
      output = true;
    }
  }
  return output;
}

class BackwardOrder {
 public:
  explicit BackwardOrder(const std::vector<Node*>& nodes)
      : nodes_(nodes), after_(nodes.size() + 1) {
    for (size_t i = 0; i < nodes.size(); ++i) place_[nodes[i]] = i + 1;
  }

  std::vector<Node*> run() {
    std::unordered_map<const Node*, bool> final_views;
    std::unordered_set<const Node*> final_nodes;
    for (Node* node : std::views::reverse(nodes_)) {
      const bool is = is_final(*node, final_views);
      if (is) final_nodes.insert(node);
      if (is_view(*node)) final_views[node] = is;
    }
    // A final node follows the last producer of its operands, or comes first if it has none in
    // backward.
    for (Node* node : nodes_)
      if (final_nodes.contains(node)) move(node, ready_for(*node));
    std::vector<Node*> ordered = after_[0];
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (!moved_.contains(nodes_[i])) ordered.push_back(nodes_[i]);
      ordered.insert(ordered.end(), after_[i + 1].begin(), after_[i + 1].end());
    }
    return ordered;
  }

 private:
  static bool is_view(const Node& node) { return op_def(node.op).kind == OpKind::View; }

  /// The place behind which the memory of `value` is computed: 0 if forward did that.
  size_t ready_at(const Value& value) const {
    const auto at = value.producer() ? place_.find(value.producer()) : place_.end();
    if (at == place_.end()) return 0;
    return is_view(*at->first) ? ready_for(*at->first) : at->second;
  }
  /// The same for all operands of `node`.
  size_t ready_for(const Node& node) const {
    size_t last = 0;
    for (const Value* input : node.inputs())
      if (input) last = std::max(last, ready_at(*input));
    return last;
  }

  /// Puts `node` behind place `last`, and views that it reads in front of it. Views do not move
  /// further ahead: a recomputed value is computed where it is first read or viewed.
  void move(Node* node, size_t last) {
    for (const Value* input : node->inputs()) {
      Node* view = input ? input->producer() : nullptr;
      if (view && is_view(*view) && place_.contains(view) && place_[view] > last) move(view, last);
    }
    // A view may have moved before, with another final node.
    if (!moved_.insert(node).second) std::erase(after_[place_[node]], node);
    place_[node] = last;
    after_[last].push_back(node);
  }

  const std::vector<Node*>& nodes_;
  std::unordered_map<const Node*, size_t> place_;  // behind it follow the nodes that moved
  std::vector<std::vector<Node*>> after_;          // by place
  std::unordered_set<const Node*> moved_;
};

}  // namespace

std::vector<Node*> order_backward(const std::vector<Node*>& nodes) {
  return BackwardOrder(nodes).run();
}

}  // namespace ortmodule
