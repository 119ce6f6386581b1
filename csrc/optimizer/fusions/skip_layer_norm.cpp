// Fuses LayerNormalization(x + skip): the sum is written once and shared by the norm, the residual
// stream and the gradient. The op is in ops/layer_norm.cpp.

#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

Reason reject(const Match& match) {
  if (match.dims("x") != match.dims("sum")) return "x is broadcast";
  if (match.dims("skip") != match.dims("sum")) return "skip is broadcast";
  // The sum may reuse the memory of an operand of its size, but these are still read after it.
  for (const char* operand : {"scale", "bias"})
    if (match.has(operand) && match.dims(operand) == match.dims("sum"))
      return str(operand, " is as large as x");
  return {};
}

const RuleSet kRules = {
    {.name = "SkipLayerNormalization", .fused_op = "SkipLayerNormalization", .reject = reject}};

}  // namespace

REGISTER_FUSION(fuse_skip_layer_norm, kRules);

}  // namespace ortmodule
