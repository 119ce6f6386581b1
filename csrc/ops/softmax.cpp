// y = exp(x) / sum(exp(x), axis), its logarithm, and BiasSoftmax = Softmax(x + bias)

#include "ops/infer_rules.h"
#include "ops/op_def.h"
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

Grads bias_softmax_grad(GradContext& c) {
  const Handle dx = c.emit("SoftmaxGrad", {c.dy(), c.y()}, c.attrs());
  return {dx, dx};
}

template <OpName op>
Values convert(TorchCall& t) {
  require_real(t, true);
  Value* x = t.operand("self", t.output().dtype);  // `dtype` and half_to_float cast first
  if (x->rank() == 0) t.refuse("a scalar has no axis");
  return {t.emit(op.text, {x}, {{"axis", t.axis("dim", x->rank())}})};
}

OpDef softmax(std::string_view name, GradFn grad, std::vector<TorchRow> rows) {
  return {.name = name,
          .inputs = {"x"},
          .outputs = {"y"},
          .attrs = {{"axis", -1}},
          .kind = OpKind::Norm,
          .infer = infer_softmax,
          .grad = grad,
          .from_torch = std::move(rows)};
}

OpDef softmax_gradient(std::string_view name) {
  return {.name = name,
          .domain = "com.microsoft",
          .inputs = {"dy", "y"},
          .outputs = {"dx"},
          .attrs = {{"axis", -1}},
          .kind = OpKind::Norm,
          .infer = infer_softmax};
}

std::vector<OpDef> softmaxes() {
  return {softmax("Softmax", softmax_grad,
                  {{"aten.softmax.int", convert<"Softmax">},
                   {"aten._softmax.default", convert<"Softmax">}}),
          softmax_gradient("SoftmaxGrad"),
          softmax("LogSoftmax", log_softmax_grad,
                  {{"aten.log_softmax.int", convert<"LogSoftmax">},
                   {"aten._log_softmax.default", convert<"LogSoftmax">}}),
          softmax_gradient("LogSoftmaxGrad")};
}

REGISTER_OPS(softmaxes());

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
                          })"});

}  // namespace
}  // namespace ortmodule
