// Softmax(x + bias) in one walk: attention scores with a mask or a position bias. The gradient
// needs the result alone, so the sum is never stored.

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

Grads grad(GradContext& c) {
  const Handle dsum = c.emit("SoftmaxGrad", {c.dy(), c.y()}, c.attrs());
  return {dsum, dsum};
}

Reason reject(const Match& match) {
  if (match.dims("x") != match.dims("y")) return "x is broadcast to the bias";
  if (match.value("bias")->is_literal()) return "bias is a literal";
  return {};
}

const std::vector<RewriteRule> kRules = {
    {.name = "BiasSoftmax", .fused_op = "BiasSoftmax", .reject = reject}};

}  // namespace

REGISTER_OP(BiasSoftmax, {
                             .domain = "com.microsoft",
                             .inputs = {"x", "bias"},
                             .outputs = {"y"},
                             .attrs = {{"axis", -1}},
                             .kind = OpKind::Norm,
                             .infer = infer_same_as_input,
                             .grad = grad,
                             .body = R"(BiasSoftmax (x, bias) => (y) {
      s = Add (x, bias)
      y = Softmax<axis=@axis> (s)
    })",
                         });

REGISTER_FUSION(fuse_bias_softmax, kRules);

}  // namespace ortmodule
