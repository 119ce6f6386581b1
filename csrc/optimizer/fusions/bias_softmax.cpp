// Fuses Softmax(x + bias): attention scores with a mask or position bias. The gradient needs only
// the result, so the sum is not saved. The op is in ops/softmax.cpp.

#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr int64_t kMostDims = 16;  // limit of the kernels

Reason reject(const Match& match) {
  if (match.dims("x") != match.dims("y")) return "x is broadcast to the bias";
  if (match.value("bias")->is_literal()) return "bias is a literal";
  const auto rank = static_cast<int64_t>(match.rank("x"));
  const int64_t axis = match.attrs().integer("axis");
  if (axis != -1 && axis != rank - 1) return "the axis is not the last one";
  if (rank > kMostDims) return str("x has more than ", kMostDims, " dimensions");
  return {};
}

const RuleSet kRules = {{.name = "BiasSoftmax", .fused_op = "BiasSoftmax", .reject = reject}};

}  // namespace

REGISTER_FUSION(fuse_bias_softmax, kRules);

}  // namespace ortmodule
