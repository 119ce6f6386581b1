// Activation functions whose gradient is one op: Tanh Sigmoid Silu Softplus LeakyRelu Elu
// HardSigmoid HardSwish Mish LogSigmoid, each with <Op>Grad (dy, x) or (dy, y)

#include "base/element_value.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

template <OpName op>
Grads grad_of_x(GradContext& c) {
  return {c.emit(op.text, {c.dy(), c.x()}, c.attrs())};
}

template <OpName op>
Grads grad_of_y(GradContext& c) {
  return {c.emit(op.text, {c.dy(), c.y()}, c.attrs())};
}

// --- gradients of the gradients ---------------------------------------------------------------
// dx = dy f'(x) is linear in dy, so the gradient of dy is the same op, and that of x is
// g dy f''(x), where g is the gradient of dx.

/// The rule of <Op>Grad, for f'' as a function of x, or of y where the op reads y.
Grads with_curvature(GradContext& c, Handle curvature) {
  Grads grads(2);
  if (c.needs(0)) grads[0] = c.emit(c.node().op, {c.dy(), c.x(1)}, c.attrs());
  if (c.needs(1)) grads[1] = curvature ? c.dy() * c.x(0) * curvature : c.zeros_for(1);
  return grads;
}

/// For functions that are linear in pieces.
Grads no_curvature(GradContext& c) { return with_curvature(c, {}); }

Grads tanh_curvature(GradContext& c) {  // of dy (1 - y^2), by y
  return with_curvature(c, c.needs(1) ? c.x(1) * -2.0 : Handle());
}

Grads sigmoid_curvature(GradContext& c) {  // of dy y (1 - y), by y
  return with_curvature(c, c.needs(1) ? 1.0 - 2.0 * c.x(1) : Handle());
}

/// s (1 - s) for s = sigmoid(x)
Handle sigmoid_slope(Handle s) { return s * (1.0 - s); }

Grads silu_curvature(GradContext& c) {  // s (1 - s) (2 + x (1 - 2 s))
  if (!c.needs(1)) return with_curvature(c, {});
  const Handle x = c.x(1), s = c.emit("Sigmoid", {x});
  return with_curvature(c, sigmoid_slope(s) * (x * (1.0 - 2.0 * s) + 2.0));
}

Grads softplus_curvature(GradContext& c) {  // beta s (1 - s) up to the threshold, s of beta x
  if (!c.needs(1)) return with_curvature(c, {});
  const double beta = c.attrs().number("beta");
  const Handle inner = c.x(1) * beta;
  const Handle linear =
      c.emit("Greater", {inner, c.literal(c.attrs().number("threshold"), inner.dtype())});
  const Handle curved = sigmoid_slope(c.emit("Sigmoid", {inner})) * beta;
  return with_curvature(c, c.emit("Where", {linear, c.literal(0.0, inner.dtype()), curved}));
}

Grads elu_curvature(GradContext& c) {  // alpha exp(x) below 0, and 0 at 0, as torch has it
  if (!c.needs(1)) return with_curvature(c, {});
  const Handle x = c.x(1), zero = c.literal(0.0, x.dtype());
  const Handle negative = c.emit("Less", {x, zero});
  const Handle below = c.emit("Where", {negative, x, zero});  // exp of large x would be infinite
  const Handle curved = c.emit("Exp", {below}) * c.attrs().number("alpha");
  return with_curvature(c, c.emit("Where", {negative, curved, zero}));
}

Grads hard_swish_curvature(GradContext& c) {  // 1 / 3 between -3 and 3
  if (!c.needs(1)) return with_curvature(c, {});
  const Handle x = c.x(1);
  const auto number = [&](double value) { return c.literal(value, x.dtype()); };
  const Handle inside =
      c.emit("And", {c.emit("Greater", {x, number(-3.0)}), c.emit("Less", {x, number(3.0)})});
  return with_curvature(c, c.emit("Where", {inside, number(1.0 / 3.0), number(0.0)}));
}

Grads mish_curvature(GradContext& c) {  // (1 - t^2) s (2 + x (1 - s) - 2 x s t), t = tanh(softplus)
  if (!c.needs(1)) return with_curvature(c, {});
  const Handle x = c.x(1), s = c.emit("Sigmoid", {x});
  const Handle t = c.emit("Tanh", {c.emit("Softplus", {x}, {{"beta", 1.0}, {"threshold", 20.0}})});
  const Handle inner = x * (1.0 - s) - x * s * t * 2.0 + 2.0;
  return with_curvature(c, (1.0 - t * t) * s * inner);
}

Grads log_sigmoid_curvature(GradContext& c) {  // -s (1 - s)
  if (!c.needs(1)) return with_curvature(c, {});
  return with_curvature(c, -sigmoid_slope(c.emit("Sigmoid", {c.x(1)})));
}

Value* floating_self(TorchCall& t) { return t.operand("self", t.output().dtype); }

Values convert_softplus(TorchCall& t) {
  return {
      t.emit("Softplus", {floating_self(t)},
             {{"beta", t.number_or("beta", 1.0)}, {"threshold", t.number_or("threshold", 20.0)}})};
}

Values convert_leaky_relu(TorchCall& t) {
  return {
      t.emit("LeakyRelu", {floating_self(t)}, {{"alpha", t.number_or("negative_slope", 0.01)}})};
}

Values convert_elu(TorchCall& t) {  // scale * (x > 0 ? x : alpha * (exp(x) - 1))
  if (t.number_or("input_scale", 1.0) != 1.0) t.refuse("input_scale must be 1");
  Value* y = t.emit("Elu", {floating_self(t)}, {{"alpha", t.number_or("alpha", 1.0)}});
  const double scale = t.number_or("scale", 1.0);
  return {scale == 1.0 ? y : t.emit("Mul", {y, t.literal(scale, y->dtype)})};
}

Values convert_glu(TorchCall& t) {  // first half * sigmoid(second half)
  require_real(t, true);
  Value* x = t.tensor("self");
  const int64_t axis = t.axis("dim", x->rank(), -1);
  const DimExpr half = t.output().dims.at(static_cast<size_t>(axis));
  const Values halves = t.emit_all("Split", {x}, {{"axis", axis}, {"sizes", Dims{half, half}}}, 2);
  return {t.emit("Mul", {halves[0], t.emit("Sigmoid", {halves[1]})})};
}

void export_silu(const OnnxRuleContext& c) {
  c.set(0, "Mul", {c.in(0), c.op("Sigmoid", {c.in(0)})});
}

void export_softplus(const OnnxRuleContext& c) {
  const double beta = c.attrs().number("beta", 1.0);
  const double threshold = c.attrs().number("threshold", 20.0);
  const std::string x = c.in(0);
  const std::string factor = beta == 1.0 ? "" : c.number(beta, c.dtype());
  const std::string inner = beta == 1.0 ? x : c.op("Mul", {x, factor});
  // Above 20, softplus(x) equals x in all types but float64, which ONNX's op does not support.
  const bool is_all = threshold >= 20.0;
  if (is_all && beta == 1.0) return c.set(0, "Softplus", {x});
  std::string y = c.op("Softplus", {inner});
  if (is_all) return c.set(0, "Div", {y, factor});
  if (beta != 1.0) y = c.op("Div", {y, factor});
  c.set(0, "Where", {c.op("Greater", {inner, c.number(threshold, c.dtype())}), x, y});
}

void export_hard_sigmoid(const OnnxRuleContext& c) {
  c.set(0, "HardSigmoid", {c.in(0)}, {{"alpha", 1.0 / 6.0}, {"beta", 0.5}});
}

void export_log_sigmoid(const OnnxRuleContext& c) {
  c.set(0, "Neg", {c.op("Softplus", {c.op("Neg", {c.in(0)})})});
}

struct Activation {
  std::string_view name;
  std::string_view grad_name;
  std::string_view saved;  // saved activation: x or y
  GradFn grad;
  Attrs attrs;
  std::vector<TorchRow> rows;
  GradFn curvature;  // the rule of <Op>Grad
  OnnxRule onnx = {export_pointwise};
};

std::vector<Activation> table() {
  return {
      {"Tanh",
       "TanhGrad",
       "y",
       grad_of_y<"TanhGrad">,
       {},
       {{"aten.tanh.default", convert_unary<"Tanh">}},
       tanh_curvature},
      {"Sigmoid",
       "SigmoidGrad",
       "y",
       grad_of_y<"SigmoidGrad">,
       {},
       {{"aten.sigmoid.default", convert_unary<"Sigmoid">}, {"aten.glu.default", convert_glu}},
       sigmoid_curvature},
      {"Silu",
       "SiluGrad",
       "x",
       grad_of_x<"SiluGrad">,
       {},
       {{"aten.silu.default", convert_unary<"Silu">}},
       silu_curvature,
       {export_silu}},
      {"Softplus",
       "SoftplusGrad",
       "x",
       grad_of_x<"SoftplusGrad">,
       {{"beta", 1.0}, {"threshold", 20.0}},
       {{"aten.softplus.default", convert_softplus}},
       softplus_curvature,
       {export_softplus}},
      {"LeakyRelu",
       "LeakyReluGrad",
       "x",
       grad_of_x<"LeakyReluGrad">,
       {{"alpha", 0.01}},
       {{"aten.leaky_relu.default", convert_leaky_relu}},
       no_curvature,
       {export_pointwise, {"alpha"}}},
      {"Elu",
       "EluGrad",
       "x",
       grad_of_x<"EluGrad">,
       {{"alpha", 1.0}},
       {{"aten.elu.default", convert_elu}},
       elu_curvature,
       {export_pointwise, {"alpha"}}},
      {"HardSigmoid",
       "HardSigmoidGrad",
       "x",
       grad_of_x<"HardSigmoidGrad">,
       {},  // relu6(x + 3) / 6
       {{"aten.hardsigmoid.default", convert_unary<"HardSigmoid">}},
       no_curvature,
       {export_hard_sigmoid}},
      {"HardSwish",
       "HardSwishGrad",
       "x",
       grad_of_x<"HardSwishGrad">,
       {},
       {{"aten.hardswish.default", convert_unary<"HardSwish">}},
       hard_swish_curvature},
      {"Mish",
       "MishGrad",
       "x",
       grad_of_x<"MishGrad">,
       {},
       {{"aten.mish.default", convert_unary<"Mish">}},
       mish_curvature},
      {"LogSigmoid",
       "LogSigmoidGrad",
       "x",
       grad_of_x<"LogSigmoidGrad">,
       {},
       {{"aten.log_sigmoid.default", convert_unary<"LogSigmoid">}},
       log_sigmoid_curvature,
       {export_log_sigmoid}},
  };
}

// Silu and LogSigmoid are not in ONNX.
std::string_view domain_of(std::string_view name) {
  return name == "Silu" || name == "LogSigmoid" ? "com.microsoft" : "";
}

std::vector<OpDef> activations() {
  std::vector<OpDef> ops;
  for (const Activation& row : table()) {
    ops.push_back({.name = row.name,
                   .domain = domain_of(row.name),
                   .inputs = {"x"},
                   .outputs = {"y"},
                   .attrs = row.attrs,
                   .kind = OpKind::Pointwise,
                   .infer = infer_same_as_input,
                   .grad = row.grad,
                   .onnx = row.onnx,
                   .from_torch = row.rows});
    ops.push_back({.name = row.grad_name,
                   .domain = "com.microsoft",
                   .inputs = {"dy", row.saved},
                   .outputs = {"dx"},
                   .attrs = row.attrs,
                   .kind = OpKind::Pointwise,
                   .infer = infer_broadcast,
                   .grad = row.curvature});
  }
  return ops;
}

// x - lambda above lambda, x + lambda below -lambda, NaN for NaN, else 0. Unlike torch's
// decomposition it does not multiply by 0 in between, where an infinite dy would give NaN. For
// 16-bit floats the gradient compares with the rounded lambda, the value only since torch 2.14.
Values convert_softshrink(TorchCall& t) {
  require_real(t);
  Value* x = t.tensor("self");
  const double given = t.number_or("lambd", 0.5), rounded = element_value(given, x->dtype);
  const double lambda = size_of(x->dtype) == 2 && t.torch().at_least(2, 14) ? rounded : given;
  auto number = [&](double value) { return t.literal(value, x->dtype); };
  Value* fixed = t.emit("Detach", {x});
  Value* zero = t.emit("Mul", {fixed, number(0.0)});
  if (size_of(x->dtype) == 2 && rounded != lambda)
    x = t.emit("Where", {t.emit("Greater", {t.emit("Abs", {fixed}), number(rounded)}), x, fixed});
  Value* below = t.emit("Where", {t.emit("Less", {fixed, number(-lambda)}),
                                  t.emit("Add", {x, number(lambda)}), zero});
  return {t.emit("Where", {t.emit("Greater", {fixed, number(lambda)}),
                           t.emit("Sub", {x, number(lambda)}), below})};
}

REGISTER_OPS(activations());
REGISTER_TORCH({{"aten.softshrink.default", convert_softshrink}});

}  // namespace
}  // namespace ortmodule
