// y = keep ? x / (1 - ratio) : 0, with keep drawn by element index from the Philox stream `rng`, so
// that backward can redraw it and no mask is saved; BiasDropout = Dropout(x + bias) + residual

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

Grads dropout_grad(GradContext& c) { return {c.emit("DropoutGrad", {c.dy()}, c.attrs())}; }

// Linear in dy, element by element.
Grads dropout_grad_grad(GradContext& c) { return {c.emit("DropoutGrad", {c.dy()}, c.attrs())}; }

// The gradient redraws the same random numbers.
Grads bias_dropout_grad(GradContext& c) {
  const Handle dx = c.emit("DropoutGrad", {c.dy()}, c.attrs());
  return {dx, dx, c.dy()};
}

Attrs dropout_attrs(TorchCall& t, double ratio) {
  return {{"ratio", ratio}, {"rng", t.next_rng_stream()}};
}

Values convert_dropout(TorchCall& t) {
  Value* x = t.tensor("input");
  const double ratio = t.number("p");
  if (!t.flag("train") || ratio == 0.0) return {t.emit("Identity", {x})};
  require_real(t, true);
  return {t.emit("Dropout", {x}, dropout_attrs(t, ratio))};
}

// The mask, which only a composite backward uses, is the dropout of ones.
Values convert_native_dropout(TorchCall& t) {
  Value* x = t.tensor("input");
  const double ratio = t.number("p");
  if (!t.flag("train", true) || ratio == 0.0)
    return {t.emit("Identity", {x}), t.full(1.0, x->dims, DType::Bool)};
  require_real(t, true);
  const Attrs attrs = dropout_attrs(t, ratio);
  Value* mask = t.emit("Dropout", {t.full(1.0, x->dims, x->dtype)}, attrs);
  return {t.emit("Dropout", {x}, attrs), t.cast(mask, DType::Bool)};
}

// `x.bernoulli_(p)` of a new tensor: the mask of a dropout of ones, drawn again in backward. No
// gradient reaches `self`. The cast to Bool makes the ones exact, as dropout divides by 1 - ratio.
Values convert_bernoulli(TorchCall& t) {
  require_real(t, true);
  const Value* x = t.tensor("self");
  const double p = t.number("p");
  if (!(p >= 0.0 && p <= 1.0)) t.refuse("p must be between 0 and 1");
  if (!t.is_none("generator")) t.refuse("it draws from a generator of its own");
  if (p == 0.0 || p == 1.0) return {t.full(p, x->dims, x->dtype)};
  Value* ones = t.full(1.0, x->dims, x->dtype);
  Value* kept = t.emit("Dropout", {ones}, dropout_attrs(t, 1.0 - p));
  return {t.cast(t.cast(kept, DType::Bool), x->dtype)};
}

// From the traced backward of a composite; its mask is a tensor.
Values convert_native_dropout_backward(TorchCall& t) {
  require_real(t, true);
  const DType dtype = t.output().dtype;
  Value* kept = t.emit("Mul", {t.operand("grad_output", dtype), t.operand("mask", dtype)});
  return {t.emit("Mul", {kept, t.operand("scale", dtype)})};
}

// Other runtimes draw other random numbers: ONNX cannot represent our stream.
void export_dropout(const OnnxRuleContext& c) {
  c.set(0, "Dropout",
        {c.in(0), c.number(c.attrs().number("ratio"), DType::Float32), c.number(1.0, DType::Bool)});
}

REGISTER_OP(Dropout, {.inputs = {"x"},
                      .outputs = {"y"},
                      .kind = OpKind::Pointwise,
                      .random = true,
                      .infer = infer_same_as_input,
                      .grad = dropout_grad,
                      .onnx = {export_dropout},
                      .from_torch = {{"aten.dropout.default", convert_dropout},
                                     {"aten.bernoulli.p", convert_bernoulli},
                                     {"aten.native_dropout.default", convert_native_dropout},
                                     {"aten.native_dropout_backward.default",
                                      convert_native_dropout_backward}}});

REGISTER_OP(DropoutGrad, {.domain = "com.microsoft",
                          .inputs = {"dy"},
                          .outputs = {"dx"},
                          .kind = OpKind::Pointwise,
                          .random = true,
                          .infer = infer_same_as_input,
                          .grad = dropout_grad_grad});

REGISTER_OP(BiasDropout, {.domain = "com.microsoft",
                          .inputs = {"x", "bias", "residual?"},
                          .outputs = {"y"},
                          .kind = OpKind::Pointwise,
                          .random = true,
                          .infer = infer_broadcast,
                          .grad = bias_dropout_grad,
                          .body = R"(bias_dropout (x, bias, residual) => (y) {
                            sum = Add (x, bias)
                            dropped = Dropout<ratio=@ratio, rng=@rng> (sum)
                            y = Add (dropped, residual)
                          })"});

}  // namespace
}  // namespace ortmodule
