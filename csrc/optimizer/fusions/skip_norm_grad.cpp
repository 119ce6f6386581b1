// Fuses the gradient of a norm with the sum of dx and the gradient that goes around the norm, as in
// blocks x + f(norm(x)): dx is added to in registers, and a kernel that reads two tensors and
// writes one vanishes. Where the norm is read in float32 and, by a Cast, in 16 bits, dy is a sum of
// both gradients, which is added as it is read. On CUDA, where both are bound by memory. After the
// gradient is built, and after fuse_norm_cast. The ops are in ops/layer_norm.cpp and
// ops/rms_norm.cpp.

#include "ops/infer_rules.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

/// Whether `value` is a view that changes the order of elements or their number: a pointwise group
/// reads it as it lies, the gradient's kernel would need a copy.
bool is_rearranged(const Value& value) {
  const Node* node = value.producer();
  if (!node || !is_view(*node)) return false;
  const bool keeps_order = op_def(node->op).view == same_view || node->op == "Reshape" ||
                           node->op == "Squeeze" || node->op == "Unsqueeze";
  return !keeps_order || is_rearranged(*node->input(0));
}

Reason reject_sum(const Match& match) {
  if (match.dtype("dsum") != match.dtype("x")) return "the types of dx and dsum differ";
  if (match.dims("dsum") != match.dims("x")) return "dsum is broadcast";
  // Its group would write dsum instead of the sum, which the readers in the group would read again.
  if (is_made_for_one_reader(*match.value("dsum")))
    return "the pointwise op that makes dsum adds it, too";
  if (is_rearranged(*match.value("dsum"))) return "dsum is a view that may need a copy";
  return {};
}

Reason reject_parts(const Match& match) {
  if (match.dtype("x") != DType::Float32 || match.dtype("more") != DType::Float32)
    return "the parts of dy are not added in f32";
  if (size_of(match.dtype("dy")) != 2 || !is_floating(match.dtype("dy")))
    return str("the cast is from ", name_of(match.dtype("dy")), ", not 16 bits of a float");
  if (match.dims("dy") != match.dims("x") || match.dims("more") != match.dims("x"))
    return "a part of dy is broadcast";
  // Its group would write this part instead of the sum, which is no less to read.
  if (is_made_for_one_reader(*match.value("more")))
    return "the pointwise op that makes a part of dy adds the other, too";
  if (is_rearranged(*match.value("more")) || is_rearranged(*match.value("dy")))
    return "a part of dy is a view that may need a copy";
  return {};
}

const RuleSet kRules = {{.name = "SkipLayerNormalizationGrad",
                         .fused_op = "SkipLayerNormalizationGrad",
                         .reject = reject_sum},
                        {.name = "CastSkipLayerNormalizationGrad",
                         .fused_op = "CastSkipLayerNormalizationGrad",
                         .reject = reject_sum},
                        {.name = "SkipSimplifiedLayerNormalizationGrad",
                         .fused_op = "SkipSimplifiedLayerNormalizationGrad",
                         .reject = reject_sum},
                        {.name = "CastSkipSimplifiedLayerNormalizationGrad",
                         .fused_op = "CastSkipSimplifiedLayerNormalizationGrad",
                         .reject = reject_sum},
                        {.name = "AddCastLayerNormalizationGrad",
                         .fused_op = "AddCastLayerNormalizationGrad",
                         .reject = reject_parts},
                        {.name = "AddCastSimplifiedLayerNormalizationGrad",
                         .fused_op = "AddCastSimplifiedLayerNormalizationGrad",
                         .reject = reject_parts}};

bool fuse_skip_norm_grad(Graph& graph, PassContext& context) {
  return context.device() == Device::CUDA && context.stage() == Stage::Joint &&
         apply_rules(graph, kRules, context);
}

}  // namespace

REGISTER_FUSION(fuse_skip_norm_grad, fuse_skip_norm_grad);

}  // namespace ortmodule
