// Softmax(x + bias) in one walk: attention scores with a mask or a position bias. The gradient
// needs the result alone, so the sum is never stored. The op is in ops/softmax.cpp.

#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr int64_t kMostDims = 16;  // that the kernels take

Reason reject(const Match& match) {
  if (match.dims("x") != match.dims("y")) return "x is broadcast to the bias";
  if (match.value("bias")->is_literal()) return "bias is a literal";
  const auto rank = static_cast<int64_t>(match.rank("x"));
  const int64_t axis = match.attrs().integer("axis");
  if (axis != -1 && axis != rank - 1) return "the axis is not the last one";
  if (rank > kMostDims) return str("it has more than ", kMostDims, " dimensions");
  return {};
}

const std::vector<RewriteRule> kRules = {
    {.name = "BiasSoftmax", .fused_op = "BiasSoftmax", .reject = reject}};

}  // namespace

REGISTER_FUSION(fuse_bias_softmax, kRules);

}  // namespace ortmodule
