// Where backward reads only the sign of a Relu's result, saves that as one byte per element:
//   ReluGrad(dy, y)  ->  Where(LessOrEqual(y, 0), 0, dy)
// The comparison is in forward, fused into the pointwise group that computes y.
#include <algorithm>
#include <unordered_map>

#include "ops/emit.h"
#include "optimizer/cleanup/cleanup.h"
#include "optimizer/edit.h"

namespace ortmodule {
namespace {

bool reads_sign(const Use& use) { return use.node->op == "ReluGrad" && use.index == 1; }

// Whether backward reads `value` or a view of it other than as the second operand of ReluGrad.
bool is_kept_otherwise(const Value& value) {
  return std::any_of(value.uses().begin(), value.uses().end(), [](const Use& use) {
    if (use.node->region == Region::Backward) return !reads_sign(use);
    return is_view(*use.node) && is_kept_otherwise(*use.node->output());
  });
}

Reason cannot_keep_sign(const Value& y) {
  if (!y.producer() || y.producer()->region != Region::Forward)
    return "it is not computed in forward";
  if (is_view(*y.producer())) return "it is a view";
  if (reaches_output(y)) return "the result of Relu is an output";
  if (is_kept_otherwise(y)) return "backward also reads the values of the result of Relu";
  return {};
}

/// The forward node that reads `value` first.
Node* first_reader(const Value& value, const std::unordered_map<const Node*, size_t>& position) {
  Node* first = nullptr;
  for (const Use& use : value.uses()) {
    if (use.node->region != Region::Forward) continue;
    if (!first || position.at(use.node) < position.at(first)) first = use.node;
  }
  return first;
}

Value* emit_sign(Graph& graph, Value* y, Node* reader) {
  Graph::Inserting here(graph, reader);
  graph.current_origin = y->producer()->origin;
  Value* zero = graph.literal(0.0, y->dtype);
  Value* sign = emit(graph, "LessOrEqual", {y, zero});
  sign->producer()->tag = y->producer()->tag;
  return sign;
}

void select_by(Graph& graph, Value* sign, Node* relu_grad) {
  Graph::Inserting here(graph, relu_grad);
  Value* dy = relu_grad->input(0);
  Value* dx = emit(graph, "Where", {sign, graph.literal(0.0, dy->dtype), dy});
  supersede(graph, relu_grad->output(), dx);
}

}  // namespace

bool keep_relu_sign(Graph& graph, PassContext& context) {
  const std::vector<Node*> nodes = graph.node_pointers();
  std::unordered_map<const Node*, size_t> position;
  for (size_t i = 0; i < nodes.size(); ++i) position[nodes[i]] = i;
  std::unordered_map<const Value*, Value*> signs;
  bool changed = false;
  for (Node* node : nodes) {
    if (node->op != "ReluGrad" || node->input(0)->dims != node->input(1)->dims) continue;
    Value* y = node->input(1);
    Value*& sign = signs[y];
    if (!sign) {
      Node* reader = first_reader(*y, position);
      if (const Reason why = cannot_keep_sign(*y); why || !reader) {
        context.reject("a sign", why.value_or("nothing in forward reads it"), *node, true);
        continue;
      }
      if (!context.take()) return changed;
      sign = emit_sign(graph, y, reader);
    }
    select_by(graph, sign, node);
    changed = true;
  }
  return changed;
}

}  // namespace ortmodule
