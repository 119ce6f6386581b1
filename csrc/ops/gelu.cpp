// y = x * P(N < x) for a standard normal N, or its tanh approximation; BiasGelu = Gelu(x + bias).
// Hendrycks & Gimpel 2016, arXiv:1606.08415

#include <numbers>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

Grads gelu_grad(GradContext& c) { return {c.emit("GeluGrad", {c.dy(), c.x()}, c.attrs())}; }

/// The second derivative: phi(x) (2 - x^2) with the normal density phi.
Handle exact_curvature(GradContext& c, Handle x) {
  const Handle square = x * x;
  const Handle density =
      c.emit("Exp", {square * -0.5}) * (0.5 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  return density * (2.0 - square);
}

/// That of 0.5 x (1 + t), t = tanh(u), u = sqrt(2 / pi) (x + 0.044715 x^3): with u' and u'' it is
/// (1 - t^2) (u' + 0.5 x (u'' - 2 t u'^2)).
Handle tanh_curvature(GradContext& c, Handle x) {
  const double scale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi, cubic = 0.044715;
  const Handle square = x * x;
  const Handle t = c.emit("Tanh", {x * (square * cubic + 1.0) * scale});
  const Handle slope = (square * (3.0 * cubic) + 1.0) * scale;
  const Handle bend = x * (6.0 * cubic * scale) - t * slope * slope * 2.0;
  return (1.0 - t * t) * (slope + x * bend * 0.5);
}

// dx = dy f'(x) is linear in dy.
Grads gelu_grad_grad(GradContext& c) {
  Grads grads(2);
  if (c.needs(0)) grads[0] = c.emit("GeluGrad", {c.dy(), c.x(1)}, c.attrs());
  if (!c.needs(1)) return grads;
  const DType wide = compute_dtype(c.x(1).dtype());
  const Handle x = c.cast(c.x(1), wide);
  const bool exact = c.attrs().string("approximate") == "none";
  const Handle curvature = exact ? exact_curvature(c, x) : tanh_curvature(c, x);
  grads[1] = c.cast(c.dy(), wide) * c.cast(c.x(0), wide) * curvature;
  return grads;
}

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
                       .infer = infer_broadcast,
                       .grad = gelu_grad_grad});

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
