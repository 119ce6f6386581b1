// y = exp(x) / sum(exp(x), axis), LogSoftmax, and BiasSoftmax = Softmax(x + bias)

#include <limits>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_softmax(InferContext& c) {
  c.axis("axis", c.input(0).rank());
  infer_same_as_input(c);
}

void infer_bias_softmax(InferContext& c) {
  infer_broadcast(c);
  c.axis("axis", c.node().output()->rank());
}

Grads softmax_grad(GradContext& c) {  // dx = y * (dy - sum(dy * y))
  return {c.emit("SoftmaxGrad", {c.dy(), c.y()}, c.attrs())};
}

Grads log_softmax_grad(GradContext& c) {  // dx = dy - exp(y) * sum(dy)
  return {c.emit("LogSoftmaxGrad", {c.dy(), c.y()}, c.attrs())};
}

Handle row_sum(GradContext& c, Handle value) {
  return c.emit("ReduceSum", {value}, {{"axes", Dims{c.attrs().integer("axis")}}, {"keepdims", 1}});
}

// Of dx = y * (dy - sum(dy * y)), for the gradient g of dx.
Grads softmax_grad_grad(GradContext& c) {
  const Handle g = c.dy(), dy = c.x(0), y = c.x(1);
  Grads grads(2);
  if (c.needs(0)) grads[0] = c.emit("SoftmaxGrad", {g, y}, c.attrs());
  if (c.needs(1)) grads[1] = g * (dy - row_sum(c, dy * y)) - dy * row_sum(c, g * y);
  return grads;
}

// Of dx = dy - exp(y) * sum(dy).
Grads log_softmax_grad_grad(GradContext& c) {
  const Handle g = c.dy(), dy = c.x(0), weighted = g * c.emit("Exp", {c.x(1)});
  Grads grads(2);
  if (c.needs(0)) grads[0] = g - row_sum(c, weighted);
  if (c.needs(1)) grads[1] = -(weighted * row_sum(c, dy));
  return grads;
}

Grads bias_softmax_grad(GradContext& c) {
  const Handle dx = c.emit("SoftmaxGrad", {c.dy(), c.y()}, c.attrs());
  return {dx, dx};
}

template <OpName op>
Values convert_softmax(TorchCall& t) {
  require_real(t, true);
  Value* x = t.operand("self", t.output().dtype);  // `dtype` and half_to_float cast first
  if (x->rank() == 0) t.refuse("a scalar has no axis");
  return {t.emit(op.text, {x}, {{"axis", t.axis("dim", x->rank())}})};
}

// Rows of only -inf give zeros. They are computed from zeros, so that no NaN enters the gradient.
Values convert_safe_softmax(TorchCall& t) {
  require_real(t, true);
  Value* x = t.operand("self", t.output().dtype);
  if (x->rank() == 0) t.refuse("a scalar has no axis");
  const int64_t axis = t.axis("dim", x->rank());
  Value* zero = t.literal(0.0, x->dtype);
  Value* lowest = t.literal(-std::numeric_limits<double>::infinity(), x->dtype);
  Value* largest = t.emit("ReduceMax", {t.emit("Detach", {x})}, {{"axes", Dims{axis}}});
  Value* masked = t.emit("Equal", {largest, lowest});
  Value* y = t.emit("Softmax", {t.emit("Where", {masked, zero, x})}, {{"axis", axis}});
  return {t.emit("Where", {masked, zero, y})};
}

// From the traced backward of a composite.
template <OpName op>
Values convert_backward(TorchCall& t) {
  Value* y = t.tensor("output");
  Value* dy = t.operand("grad_output", y->dtype);
  if (y->rank() == 0) t.refuse("a scalar has no axis");
  Value* dx = t.emit(op.text, {dy, y}, {{"axis", t.axis("dim", y->rank())}});
  return {t.cast(dx, t.output().dtype)};
}

OpDef softmax(std::string_view name, GradFn grad, std::vector<TorchRow> rows) {
  return {.name = name,
          .inputs = {"x"},
          .outputs = {"y"},
          .attrs = {{"axis", -1}},
          .kind = OpKind::Norm,
          .infer = infer_softmax,
          .grad = grad,
          .onnx = {export_directly, {"axis"}},
          .from_torch = std::move(rows)};
}

OpDef softmax_gradient(std::string_view name, GradFn grad, std::vector<TorchRow> rows) {
  return {.name = name,
          .domain = "com.microsoft",
          .inputs = {"dy", "y"},
          .outputs = {"dx"},
          .attrs = {{"axis", -1}},
          .kind = OpKind::Norm,
          .infer = infer_softmax,
          .grad = grad,
          .from_torch = std::move(rows)};
}

std::vector<OpDef> softmaxes() {
  return {
      softmax("Softmax", softmax_grad,
              {{"aten.softmax.int", convert_softmax<"Softmax">},
               {"aten._softmax.default", convert_softmax<"Softmax">},
               {"aten._safe_softmax.default", convert_safe_softmax}}),
      softmax_gradient("SoftmaxGrad", softmax_grad_grad,
                       {{"aten._softmax_backward_data.default", convert_backward<"SoftmaxGrad">}}),
      softmax("LogSoftmax", log_softmax_grad,
              {{"aten.log_softmax.int", convert_softmax<"LogSoftmax">},
               {"aten._log_softmax.default", convert_softmax<"LogSoftmax">}}),
      softmax_gradient(
          "LogSoftmaxGrad", log_softmax_grad_grad,
          {{"aten._log_softmax_backward_data.default", convert_backward<"LogSoftmaxGrad">}})};
}

REGISTER_OPS(softmaxes());

void export_bias_softmax(const OnnxRuleContext& c) {
  c.set(0, "Softmax", {c.op("Add", {c.in(0), c.in(1)})}, c.pick({"axis"}));
}

REGISTER_OP(BiasSoftmax, {.domain = "com.microsoft",
                          .inputs = {"x", "bias"},
                          .outputs = {"y"},
                          .attrs = {{"axis", -1}},
                          .kind = OpKind::Norm,
                          .infer = infer_bias_softmax,
                          .grad = bias_softmax_grad,
                          .body = R"(bias_softmax (x, bias) => (y) {
                            sum = Add (x, bias)
                            y = Softmax<axis=@axis> (sum)
                          })",
                          .onnx = {export_bias_softmax}});

REGISTER_ROW_AXES(rows_beside_axis, "Softmax", "LogSoftmax");

}  // namespace
}  // namespace ortmodule
