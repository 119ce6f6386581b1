// CustomGradient (y1..yn, x1..xm, saved...) -> y1..yn: the identity of its first n operands, with a
// gradient with respect to x1..xm given as a graph. It represents a user's autograd.Function and
// the traced vector-Jacobian product of an op without a rule. Lowering replaces it by its operands.
#include <algorithm>
#include <set>

#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_custom_gradient(InferContext& c) {
  const auto count = static_cast<size_t>(c.attrs().integer("outputs"));
  for (size_t i = 0; i < count; ++i) c.set(i, c.input(i).dtype, c.input(i).dims);
}

/// The values of `body` that depend on one of `roots`.
std::set<const Value*> reached_from(const Graph& body, std::set<const Value*> roots) {
  for (const auto& node : body.nodes())
    if (std::any_of(node->inputs().begin(), node->inputs().end(),
                    [&](const Value* input) { return roots.contains(input); }))
      roots.insert(node->outputs().begin(), node->outputs().end());
  return roots;
}

Handle gate(GradContext& c, Handle value, const std::vector<Handle>& arriving) {
  std::vector<Handle> operands{value};
  operands.insert(operands.end(), arriving.begin(), arriving.end());
  return c.emit("GradientGate", operands, {});
}

// The User inputs of the body are the saved values in order; GradOutput inputs have the index of
// the gradient.
Grads custom_gradient_grad(GradContext& c) {
  const auto outputs = static_cast<size_t>(c.attrs().integer("outputs"));
  const auto inputs = static_cast<size_t>(c.attrs().integer("inputs"));
  const auto body = c.attrs().graph("body");
  std::vector<Handle> arriving;
  for (size_t i = 0; i < outputs; ++i)
    if (Handle grad = c.dy(i)) arriving.push_back(grad);
  Values arguments;
  std::set<const Value*> flowing;
  size_t saved = outputs + inputs;
  for (const GraphInput& input : body->inputs()) {
    if (input.kind != InputKind::GradOutput) {
      arguments.push_back(c.x(saved++).value());
      continue;
    }
    const auto index = static_cast<size_t>(input.index);
    Handle grad = c.dy_or_zero(index);
    if (c.dy(index)) flowing.insert(input.value);
    if (c.dy(index) && arriving.size() > 1) grad = gate(c, grad, arriving);
    arguments.push_back(grad.value());
  }
  const std::set<const Value*> follow = reached_from(*body, std::move(flowing));
  const Values results = c.graph().inline_graph(*body, arguments);
  Grads grads(c.input_count());
  for (size_t i = 0; i < results.size() && i < inputs; ++i) {
    if (!results[i]) continue;
    const Handle result(&c.graph(), results[i]);
    grads[outputs + i] =
        follow.contains(body->outputs()[i].value) ? result : gate(c, result, arriving);
  }
  return grads;
}

// Exports only the identity; ONNX has no place for the gradient's graph.
void export_custom_gradient(const OnnxRuleContext& c) {
  for (size_t i = 0; i < c.node.outputs().size(); ++i) c.set(i, "Identity", {c.in(i)});
}

}  // namespace

REGISTER_OP(CustomGradient, {.domain = "org.pytorch.aten",
                             .inputs = {"values*"},
                             .outputs = {"values*"},
                             .kind = OpKind::Opaque,
                             .infer = infer_custom_gradient,
                             .keeps_channels_last = always,
                             .grad = custom_gradient_grad,
                             .onnx = {export_custom_gradient}});

}  // namespace ortmodule
