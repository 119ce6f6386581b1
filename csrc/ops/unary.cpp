// y = f(x) elementwise: elementary functions and rounding

#include <cmath>
#include <numbers>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

using C = GradContext&;

// As torch, returns zeros, not None, for functions that are constant almost everywhere.
Grads zero_grad(C c) { return {c.zeros_for(0)}; }

// log(u) * x / (u - 1) for u = 1 + x: the rounding error of u cancels near 0 (Kahan).
void export_log1p(const OnnxRuleContext& c) {
  const std::string x = c.in(0);
  const std::string one = c.number(1.0, c.dtype());
  const std::string sum = c.op("Add", {x, one});
  const std::string log = c.op("Log", {sum});
  const std::string step = c.op("Sub", {sum, one});
  const std::string scaled = c.op("Mul", {log, c.op("Div", {x, step})});
  const std::string lost = c.op("Equal", {sum, one});
  const std::string small = c.op("Less", {c.op("Abs", {x}), one});
  c.set(0, "Where", {lost, x, c.op("Where", {small, scaled, log})});
}

// e^x - 1 = tanh(x / 2) * (e^x + 1), without cancellation
void export_expm1(const OnnxRuleContext& c) {
  const std::string half = c.op("Mul", {c.in(0), c.number(0.5, c.dtype())});
  const std::string sum = c.op("Add", {c.op("Exp", {c.in(0)}), c.number(1.0, c.dtype())});
  c.set(0, "Mul", {c.op("Tanh", {half}), sum});
}

void export_rsqrt(const OnnxRuleContext& c) { c.set(0, "Reciprocal", {c.op("Sqrt", {c.in(0)})}); }

void export_trunc(const OnnxRuleContext& c) {  // sign(x) * floor(|x|)
  c.set(0, "Mul", {c.op("Sign", {c.in(0)}), c.op("Floor", {c.op("Abs", {c.in(0)})})});
}

OpDef unary(std::string_view name, GradFn grad, std::vector<TorchRow> rows,
            OnnxRule onnx = {export_pointwise}) {
  return {.name = name,
          .inputs = {"x"},
          .outputs = {"y"},
          .kind = OpKind::Pointwise,
          .infer = infer_same_as_input,
          .grad = grad,
          .onnx = std::move(onnx),
          .from_torch = std::move(rows)};
}

std::vector<OpDef> elementary() {
  return {
      unary("Neg", [](C c) -> Grads { return {-c.dy()}; },
            {{"aten.neg.default", convert_unary<"Neg">}}),
      unary("Abs", [](C c) -> Grads { return {c.dy() * c.emit("Sign", {c.x()})}; },
            {{"aten.abs.default", convert_unary<"Abs">}}),
      unary("Exp", [](C c) -> Grads { return {c.dy() * c.y()}; },
            {{"aten.exp.default", convert_unary<"Exp">}}),
      unary("Log", [](C c) -> Grads { return {c.dy() / c.x()}; },
            {{"aten.log.default", convert_unary<"Log">}}),
      unary("Log1p", [](C c) -> Grads { return {c.dy() / (c.x() + 1.0)}; },
            {{"aten.log1p.default", convert_unary<"Log1p">}}, {export_log1p}),
      unary("Expm1", [](C c) -> Grads { return {c.dy() * (c.y() + 1.0)}; },
            {{"aten.expm1.default", convert_unary<"Expm1">}}, {export_expm1}),
      unary("Sqrt", [](C c) -> Grads { return {c.dy() / (c.y() * 2.0)}; },
            {{"aten.sqrt.default", convert_unary<"Sqrt">}}),
      unary("Rsqrt", [](C c) -> Grads { return {c.dy() * (c.y() * c.y() * c.y()) * -0.5}; },
            {{"aten.rsqrt.default", convert_unary<"Rsqrt">}}, {export_rsqrt}),
      unary("Reciprocal", [](C c) -> Grads { return {-(c.dy() * (c.y() * c.y()))}; },
            {{"aten.reciprocal.default", convert_unary<"Reciprocal">}}),
      unary("Erf",
            [](C c) -> Grads {
              const double slope = 2.0 / std::sqrt(std::numbers::pi);
              return {c.dy() * (c.emit("Exp", {-(c.x() * c.x())}) * slope)};
            },
            {{"aten.erf.default", convert_unary<"Erf">}}),
  };
}

std::vector<OpDef> trigonometric() {
  return {
      unary("Sin", [](C c) -> Grads { return {c.dy() * c.emit("Cos", {c.x()})}; },
            {{"aten.sin.default", convert_unary<"Sin">}}),
      unary("Cos", [](C c) -> Grads { return {-(c.dy() * c.emit("Sin", {c.x()}))}; },
            {{"aten.cos.default", convert_unary<"Cos">}}),
      unary("Tan", [](C c) -> Grads { return {c.dy() * (c.y() * c.y() + 1.0)}; },
            {{"aten.tan.default", convert_unary<"Tan">}}),
      unary("Asin", [](C c) -> Grads { return {c.dy() * c.emit("Rsqrt", {1.0 - c.x() * c.x()})}; },
            {{"aten.asin.default", convert_unary<"Asin">}}),
      unary("Acos",
            [](C c) -> Grads { return {-(c.dy() * c.emit("Rsqrt", {1.0 - c.x() * c.x()}))}; },
            {{"aten.acos.default", convert_unary<"Acos">}}),
      unary("Atan", [](C c) -> Grads { return {c.dy() / (c.x() * c.x() + 1.0)}; },
            {{"aten.atan.default", convert_unary<"Atan">}}),
      unary("Sinh", [](C c) -> Grads { return {c.dy() * c.emit("Cosh", {c.x()})}; },
            {{"aten.sinh.default", convert_unary<"Sinh">}}),
      unary("Cosh", [](C c) -> Grads { return {c.dy() * c.emit("Sinh", {c.x()})}; },
            {{"aten.cosh.default", convert_unary<"Cosh">}}),
  };
}

Values convert_sign(TorchCall& t) {
  Value* x = t.tensor("self");
  return {t.emit(x->dtype == DType::Bool ? "Identity" : "Sign", {x})};
}

std::vector<OpDef> rounding() {
  return {
      unary("Sign", zero_grad, {{"aten.sign.default", convert_sign}}),
      unary("Floor", zero_grad, {{"aten.floor.default", convert_unary<"Floor">}}),
      unary("Ceil", zero_grad, {{"aten.ceil.default", convert_unary<"Ceil">}}),
      unary("Round", zero_grad, {{"aten.round.default", convert_unary<"Round">}}),
      unary("Trunc", zero_grad, {{"aten.trunc.default", convert_unary<"Trunc">}}, {export_trunc}),
  };
}

REGISTER_OPS(elementary());
REGISTER_OPS(trigonometric());
REGISTER_OPS(rounding());

}  // namespace
}  // namespace ortmodule
