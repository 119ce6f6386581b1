// Dropout(x + bias) + residual, the end of a transformer's half layer, in one walk. Its gradient
// draws the same random numbers again and reads nothing but the incoming gradient.

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

Grads grad(GradContext& c) {
  const Handle dsum = c.emit("DropoutGrad", {c.dy()}, c.attrs());
  if (!c.x(2)) return {dsum, dsum};
  return {dsum, dsum, c.dy()};
}

Reason reject(const Match& match) {
  if (match.rank("bias") != 1) return str("bias has rank ", match.rank("bias"), ", wants 1");
  if (match.dims("x") != match.dims("y")) return "x is broadcast";
  return {};
}

Reason reject_residual(const Match& match) {
  if (Reason reason = reject(match)) return reason;
  if (match.dims("residual") != match.dims("y")) return "residual is broadcast";
  return {};
}

// The longer pattern first: it contains the shorter.
const std::vector<RewriteRule> kRules = {
    {.name = "BiasDropout with residual", .fused_op = "BiasDropout", .reject = reject_residual},
    {.name = "BiasDropout",
     .pattern = R"((x, bias) => (y) {
       s = Add (x, bias)
       y = Dropout<ratio=@ratio, rng=@rng> (s)
     })",
     .fused_op = "BiasDropout",
     .reject = reject}};

}  // namespace

REGISTER_OP(BiasDropout, {
                             .domain = "com.microsoft",
                             .inputs = {"x", "bias", "residual?"},
                             .outputs = {"y"},
                             .kind = OpKind::Pointwise,
                             .random = true,
                             .infer = infer_broadcast,
                             .grad = grad,
                             .body = R"(BiasDropout (x, bias, residual) => (y) {
      s = Add (x, bias)
      d = Dropout<ratio=@ratio, rng=@rng> (s)
      y = Add (d, residual)
    })",
                         });

REGISTER_FUSION(fuse_bias_dropout, kRules);

}  // namespace ortmodule
