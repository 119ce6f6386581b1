// y = x * P(N < x) for a standard normal N, or its tanh approximation; BiasGelu = Gelu(x + bias).
// Hendrycks & Gimpel 2016, arXiv:1606.08415

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

Grads gelu_grad(GradContext& c) { return {c.emit("GeluGrad", {c.dy(), c.x()}, c.attrs())}; }

Values convert_gelu(TorchCall& t) {
  return {t.emit("Gelu", {t.operand("self", t.output().dtype)},
                 {{"approximate", t.string("approximate", "none")}})};
}

REGISTER_OP(Gelu, {.inputs = {"x"},
                   .outputs = {"y"},
                   .attrs = {{"approximate", "none"}},
                   .kind = OpKind::Pointwise,
                   .infer = infer_same_as_input,
                   .grad = gelu_grad,
                   .onnx = {export_pointwise, {"approximate"}},
                   .from_torch = {{"aten.gelu.default", convert_gelu}}});

REGISTER_OP(GeluGrad, {.domain = "com.microsoft",
                       .inputs = {"dy", "x"},
                       .outputs = {"dx"},
                       .attrs = {{"approximate", "none"}},
                       .kind = OpKind::Pointwise,
                       .infer = infer_broadcast});

// Recomputes the sum in backward: one addition instead of a saved activation.
Grads bias_gelu_grad(GradContext& c) {
  const Handle dx = c.emit("GeluGrad", {c.dy(), c.x(0) + c.x(1)}, c.attrs());
  return {dx, dx};
}

REGISTER_OP(BiasGelu, {.domain = "com.microsoft",
                       .inputs = {"x", "bias"},
                       .outputs = {"y"},
                       .attrs = {{"approximate", "none"}},
                       .kind = OpKind::Pointwise,
                       .infer = infer_broadcast,
                       .grad = bias_gelu_grad,
                       .body = R"(bias_gelu (x, bias) => (y) {
                         sum = Add (x, bias)
                         y = Gelu<approximate=@approximate> (sum)
                       })"});

}  // namespace
}  // namespace ortmodule
