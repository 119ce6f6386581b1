// ReluGrad needs only the sign of the Relu's result. The output of a dropout or max pool after it
// has the same sign wherever a gradient arrives, and is usually saved for the next layer anyway:
//   ReluGrad(DropoutGrad(dy), y)  ->  ReluGrad(DropoutGrad(dy), Dropout(y))
//   ReluGrad(MaxPoolGrad(dy), y)  ->  MaxPoolGrad(ReluGrad(dy, MaxPool(y)))
// Results stay bitwise equal: the gradient of a dropped element is 0 either way, a kept one is
// scaled by at least 1, and the maximum of a window is the value of the element that it selected.
#include <algorithm>

#include "ops/emit.h"
#include "optimizer/cleanup/cleanup.h"
#include "optimizer/edit.h"

namespace ortmodule {
namespace {

// The output of `later`, a reader of y in forward, if `grad` is its gradient; else null.
Value* counterpart(const Node& later, const Node& grad) {
  if (later.region != Region::Forward) return nullptr;
  const bool dropout = later.op == "Dropout" && grad.op == "DropoutGrad" &&
                       later.attrs.number("ratio") == grad.attrs.number("ratio") &&
                       later.attrs.integer("rng") == grad.attrs.integer("rng");
  const bool pool =
      later.op == "MaxPool" && grad.op == "MaxPoolGrad" && later.output(2) == grad.input(1);
  return dropout || pool ? later.output() : nullptr;
}

Value* value_of_same_sign(const Value& y, const Node& grad) {
  for (const Use& use : y.uses())
    if (Value* found = counterpart(*use.node, grad)) return found;
  return nullptr;
}

bool is_read_in_backward(const Value& value, const Node& except) {
  return std::any_of(value.uses().begin(), value.uses().end(), [&](const Use& use) {
    if (use.node == &except) return false;
    if (use.node->region == Region::Backward) return true;
    return is_view(*use.node) && is_read_in_backward(*use.node->output(), except);
  });
}

Reason cannot_read_later(const Node& relu_grad, const Value& later) {
  const Value& y = *relu_grad.input(1);
  const Value& dy = *relu_grad.input(0);
  if (is_read_in_backward(y, relu_grad)) return "backward also reads the result of Relu elsewhere";
  // The user may change it before backward runs.
  if (reaches_output(later)) return "the later value is an output";
  if (dy.dims != y.dims || dy.uses().size() != 1 || dy.is_graph_output())
    return "the gradient between them has other readers or is broadcast";
  return {};
}

// Swaps the order of the two gradients.
void swap_gradients(Graph& graph, Node* relu_grad, Value* pooled) {
  Node* pool_grad = relu_grad->input(0)->producer();
  Graph::Inserting here(graph, relu_grad);
  Value* dy = emit(graph, "ReluGrad", {pool_grad->input(0), pooled});
  Value* dx = emit(graph, "MaxPoolGrad", {dy, pool_grad->input(1)}, pool_grad->attrs);
  supersede(graph, relu_grad->output(), dx);
}

}  // namespace

bool read_relu_sign_later(Graph& graph, PassContext& context) {
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    if (node->op != "ReluGrad" || !node->input(0)->producer()) continue;
    const Node& before = *node->input(0)->producer();
    Value* later = value_of_same_sign(*node->input(1), before);
    if (!later) continue;
    if (const Reason why = cannot_read_later(*node, *later)) {
      context.reject("a later value", *why, *node, true);
      continue;
    }
    if (!context.take()) return changed;
    if (before.op == "DropoutGrad")
      graph.set_input(node, 1, later);
    else
      swap_gradients(graph, node, later);
    changed = true;
  }
  return changed;
}

}  // namespace ortmodule
