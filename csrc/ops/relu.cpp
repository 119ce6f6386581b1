// y = max(x, 0); dx = dy where y > 0, else 0

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

Grads relu_grad(GradContext& c) { return {c.emit("ReluGrad", {c.dy(), c.y()})}; }

Grads relu_grad_grad(GradContext& c) {
  Grads grads(2);
  if (c.needs(0)) grads[0] = c.emit("ReluGrad", {c.dy(), c.x(1)});
  if (c.needs(1)) grads[1] = c.zeros_for(1);
  return grads;
}

REGISTER_OP(Relu, {.inputs = {"x"},
                   .outputs = {"y"},
                   .kind = OpKind::Pointwise,
                   .infer = infer_same_as_input,
                   .grad = relu_grad,
                   .onnx = {export_pointwise},
                   .from_torch = {{"aten.relu.default", convert_unary<"Relu">}}});

REGISTER_OP(ReluGrad, {.domain = "com.microsoft",
                       .inputs = {"dy", "y"},
                       .outputs = {"dx"},
                       .kind = OpKind::Pointwise,
                       .infer = infer_broadcast,
                       .grad = relu_grad_grad});

}  // namespace
}  // namespace ortmodule
