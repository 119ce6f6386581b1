// y = log(sum(exp(x))) over `axes`, which stay as dimensions of 1. Its gradient reads x and y
// alone, as in torch: exp(x - y) is no activation that is saved.
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// A maximum that is infinite is not subtracted, as the difference would be NaN.
std::string log_sum_exp_body(const Node& node) {
  return str(R"(log_sum_exp (x) => (y) {
    largest = ReduceMax<axes=@axes, keepdims=1> (x)
    endless = IsInf (largest)
    shift = Where (endless, 0.0:)",
             name_of(node.input(0)->dtype), R"(, largest)
    shifted = Sub (x, shift)
    power = Exp (shifted)
    sum = ReduceSum<axes=@axes, keepdims=1> (power)
    log = Log (sum)
    y = Add (log, shift)
  })");
}

Grads log_sum_exp_grad(GradContext& c) { return {c.dy() * c.emit("Exp", {c.x() - c.y()})}; }

Values convert_log_sum_exp(TorchCall& t) {
  require_real(t, true);
  Value* x = t.operand("self", compute_dtype(t.output().dtype));
  if (x->rank() == 0) return {t.cast(x, t.output().dtype)};
  const std::vector<int64_t> axes = t.axes("dim", x->rank());
  Value* y = t.emit("ReduceLogSumExp", {x}, {{"axes", Dims(axes.begin(), axes.end())}});
  return {t.cast(t.reshape(y, t.output().dims), t.output().dtype)};
}

REGISTER_OP(ReduceLogSumExp, {.inputs = {"x"},
                              .outputs = {"y"},
                              .attrs = {{"axes", Dims()}},
                              .kind = OpKind::Reduction,
                              .infer = infer_reduce_kept,
                              .grad = log_sum_exp_grad,
                              .body_of = log_sum_exp_body,
                              .from_torch = {{"aten.logsumexp.default", convert_log_sum_exp}}});

}  // namespace
}  // namespace ortmodule
