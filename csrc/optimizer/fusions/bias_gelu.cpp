// Fuses Gelu(x + bias); both parts are memory-bound. The op is in ops/gelu.cpp.

#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

Reason reject(const Match& match) {
  if (match.rank("bias") != 1) return str("bias has rank ", match.rank("bias"), ", expected 1");
  if (match.dims("x") != match.dims("y")) return "x is broadcast to the bias";
  return {};
}

const RuleSet kRules = {{.name = "BiasGelu", .fused_op = "BiasGelu", .reject = reject}};

}  // namespace

REGISTER_FUSION(fuse_bias_gelu, kRules);

}  // namespace ortmodule
