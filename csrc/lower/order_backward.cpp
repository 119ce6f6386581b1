// The order of the backward pass. Gradient rules emit the data gradient of a product before its
// weight gradient, which would keep the saved operand allocated beside the data gradient. Therefore
// nodes whose results are only returned run as soon as their operands exist, and the operands can
// be freed.
#include <algorithm>
#include <unordered_map>

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

}  // namespace

std::vector<Node*> order_backward(const std::vector<Node*>& nodes) {
  std::unordered_map<const Node*, bool> final_node;
  std::unordered_map<const Node*, bool> final_views;
  for (size_t i = nodes.size(); i-- > 0;) {
    const bool is = is_final(*nodes[i], final_views);
    final_node[nodes[i]] = is;
    if (op_def(nodes[i]->op).kind == OpKind::View) final_views[nodes[i]] = is;
  }
  // A final node follows the last producer of its operands, or comes first if it has none in
  // backward.
  std::unordered_map<const Node*, size_t> position;
  for (size_t i = 0; i < nodes.size(); ++i) position[nodes[i]] = i + 1;
  std::vector<std::vector<Node*>> after(nodes.size() + 1);
  std::unordered_map<const Node*, size_t> anchor;
  for (Node* node : nodes) {
    if (!final_node[node]) continue;
    size_t last = 0;
    for (const Value* input : node->inputs()) {
      if (!input || !input->producer()) continue;
      auto at = position.find(input->producer());
      if (at == position.end()) continue;
      auto moved = anchor.find(input->producer());
      last = std::max(last, moved == anchor.end() ? at->second : moved->second);
    }
    anchor[node] = last;
    after[last].push_back(node);
  }
  std::vector<Node*> ordered = after[0];
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!final_node[nodes[i]]) ordered.push_back(nodes[i]);
    ordered.insert(ordered.end(), after[i + 1].begin(), after[i + 1].end());
  }
  return ordered;
}

}  // namespace ortmodule
