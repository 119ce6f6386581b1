// y = x, absent if all of the gradients x2..xn are absent. A user's backward function need not be
// linear: eager PyTorch calls it with zeros for absent gradients, or not at all if all are absent.
// Its inputs, and results that depend on no gradient, pass through gates, so that pruning does the
// same.
#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

Grads gate_grad(GradContext& c) {
  Grads grads(c.input_count());
  grads[0] = c.dy();
  return grads;
}

bool depends_on_value(size_t, size_t operand) { return operand == 0; }

REGISTER_OP(GradientGate, {.domain = "org.pytorch.aten",
                           .inputs = {"x", "gradients*"},
                           .outputs = {"y"},
                           .kind = OpKind::View,
                           .infer = infer_same_as_input,
                           .view = same_view,
                           .keeps_channels_last = always,
                           .grad = gate_grad,
                           .depends = depends_on_value});

}  // namespace
}  // namespace ortmodule
