// Fuses Dropout(x + bias) + residual, the end of a transformer sublayer. The op is in
// ops/dropout.cpp.

#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

Reason reject(const Match& match) {
  if (match.rank("bias") != 1) return str("bias has rank ", match.rank("bias"), ", expected 1");
  if (match.dims("x") != match.dims("y")) return "x is broadcast";
  return {};
}

Reason reject_residual(const Match& match) {
  if (Reason reason = reject(match)) return reason;
  if (match.dims("residual") != match.dims("y")) return "residual is broadcast";
  return {};
}

// The longer pattern comes first, since it contains the shorter one.
const RuleSet kRules = {
    {.name = "BiasDropout with residual", .fused_op = "BiasDropout", .reject = reject_residual},
    {.name = "BiasDropout",
     .pattern = R"((x, bias) => (y) {
       s = Add (x, bias)
       y = Dropout<ratio=@ratio, rng=@rng> (s)
     })",
     .fused_op = "BiasDropout",
     .reject = reject}};

}  // namespace

REGISTER_FUSION(fuse_bias_dropout, kRules);

}  // namespace ortmodule
