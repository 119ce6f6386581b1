// Gelu(x + bias) in one walk over x. Pays because both parts are memory-bound, and because the
// gradient needs only x: the sum is computed again where it is read.

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

Grads grad(GradContext& c) {
  const Handle sum = c.emit("Add", {c.x(0), c.x(1)});
  const Handle dsum = c.emit("GeluGrad", {c.dy(), sum}, c.attrs());
  return {dsum, dsum};
}

Reason reject(const Match& match) {
  if (match.rank("bias") != 1) return str("bias has rank ", match.rank("bias"), ", wants 1");
  if (match.dims("x") != match.dims("y")) return "x is broadcast to the bias";
  return {};
}

const std::vector<RewriteRule> kRules = {
    {.name = "BiasGelu", .fused_op = "BiasGelu", .reject = reject}};

}  // namespace

REGISTER_OP(BiasGelu, {
                          .domain = "com.microsoft",
                          .inputs = {"x", "bias"},
                          .outputs = {"y"},
                          .attrs = {{"approximate", "none"}},
                          .kind = OpKind::Pointwise,
                          .infer = infer_broadcast,
                          .grad = grad,
                          .body = R"(BiasGelu (x, bias) => (y) {
      s = Add (x, bias)
      y = Gelu<approximate=@approximate> (s)
    })",
                      });

REGISTER_FUSION(fuse_bias_gelu, kRules);

}  // namespace ortmodule
