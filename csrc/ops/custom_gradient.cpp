// CustomGradient (y1..yn, x1..xm, saved...) -> y1..yn: the identity on its first operands, whose
// gradient with respect to x1..xm is an explicit graph. It carries a user's autograd.Function and
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

/// Whether `value` follows from a gradient; the body's order is topological.
bool follows_from_gradient(const Graph& body, const Value* value) {
  std::set<const Value*> reached;
  for (const GraphInput& input : body.inputs())
    if (input.kind == InputKind::GradOutput) reached.insert(input.value);
  for (const auto& node : body.nodes())
    if (std::any_of(node->inputs().begin(), node->inputs().end(),
                    [&](const Value* input) { return reached.contains(input); }))
      reached.insert(node->outputs().begin(), node->outputs().end());
  return reached.contains(value);
}

/// A gradient is linear in those that arrive, so one that follows from none of them is zero.
Handle zeros(GradContext& c, const Value& like) {
  std::vector<Handle> arriving;
  for (size_t i = 0; i < c.node().outputs().size(); ++i)
    if (Handle grad = c.dy(i)) arriving.push_back(grad);
  return c.emit("GradientZeros", arriving, {{"shape", like.dims}, {"dtype", like.dtype}});
}

// Body inputs: User inputs are the saved values in order, GradOutput ones say which gradient.
Grads custom_gradient_grad(GradContext& c) {
  const auto outputs = static_cast<size_t>(c.attrs().integer("outputs"));
  const auto inputs = static_cast<size_t>(c.attrs().integer("inputs"));
  const auto body = c.attrs().graph("body");
  Values arguments;
  size_t saved = outputs + inputs;
  for (const GraphInput& input : body->inputs())
    arguments.push_back(input.kind == InputKind::GradOutput
                            ? c.dy_or_zero(static_cast<size_t>(input.index)).value()
                            : c.x(saved++).value());
  const Values results = c.graph().inline_graph(*body, arguments);
  Grads grads(c.input_count());
  for (size_t i = 0; i < results.size() && i < inputs; ++i)
    if (results[i])
      grads[outputs + i] = follows_from_gradient(*body, body->outputs()[i].value)
                               ? Handle(&c.graph(), results[i])
                               : zeros(c, *results[i]);
  return grads;
}

}  // namespace

REGISTER_OP(CustomGradient, {.domain = "org.pytorch.aten",
                             .inputs = {"values*"},
                             .outputs = {"values*"},
                             .kind = OpKind::Opaque,
                             .infer = infer_custom_gradient,
                             .keeps_channels_last = always,
                             .grad = custom_gradient_grad});

}  // namespace ortmodule
