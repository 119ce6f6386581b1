// Fuses norms in float32 with the casts of autocast: y is rounded to 16 bits where it is computed,
// and the gradient takes dy in 16 bits, so that neither passes memory in 32 bits. Where y is read
// in float32, too, as by the residual sum behind a norm, one kernel writes both. On CUDA, where
// norms are bound by memory. After the gradient is built, which knows the norms alone. The ops are
// in ops/layer_norm.cpp and ops/rms_norm.cpp.

#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

Reason reject_types(DType wide, DType narrow) {
  if (wide != DType::Float32) return str("the norm computes ", name_of(wide), ", not f32");
  if (narrow != DType::Float16 && narrow != DType::BFloat16)
    return str("the cast is to or from ", name_of(narrow), ", not 16 bits of a float");
  return {};
}

Reason reject(const Match& match) { return reject_types(match.dtype("x"), match.dtype("y")); }

Reason reject_beside(const Match& match) {
  return reject_types(match.dtype("x"), match.dtype("rounded"));
}

Reason reject_gradient(const Match& match) {
  return reject_types(match.dtype("x"), match.dtype("dy"));
}

const RuleSet kRules = {{.name = "SkipLayerNormalizationCast",
                         .pattern = R"((x, skip, scale?, bias?) => (y, mean, inv_std_dev, sum) {
       n, mean, inv_std_dev, sum = SkipLayerNormalization<axis=@axis, epsilon=@epsilon>
           (x, skip, scale, bias)
       y = Cast<to=@to> (n)
     })",
                         .fused_op = "SkipLayerNormalizationCast",
                         .reject = reject},
                        {.name = "LayerNormalizationCast",
                         .pattern = R"((x, scale?, bias?) => (y, mean, inv_std_dev) {
       n, mean, inv_std_dev = LayerNormalization<axis=@axis, epsilon=@epsilon> (x, scale, bias)
       y = Cast<to=@to> (n)
     })",
                         .fused_op = "LayerNormalizationCast",
                         .reject = reject},
                        {.name = "SimplifiedLayerNormalizationCast",
                         .pattern = R"((x, scale?) => (y, inv_std_dev) {
       n, inv_std_dev = SimplifiedLayerNormalization<axis=@axis, epsilon=@epsilon> (x, scale)
       y = Cast<to=@to> (n)
     })",
                         .fused_op = "SimplifiedLayerNormalizationCast",
                         .reject = reject},
                        // Of results that are read in float32, too; after those that are not.
                        {.name = "SkipLayerNormalizationWithCast",
                         .pattern = R"((x, skip, scale?, bias?) =>
           (y, mean, inv_std_dev, sum, rounded) {
       y, mean, inv_std_dev, sum = SkipLayerNormalization<axis=@axis, epsilon=@epsilon>
           (x, skip, scale, bias)
       rounded = Cast<to=@to> (y)
     })",
                         .fused_op = "SkipLayerNormalizationWithCast",
                         .reject = reject_beside},
                        {.name = "LayerNormalizationWithCast",
                         .fused_op = "LayerNormalizationWithCast",
                         .reject = reject_beside},
                        {.name = "SimplifiedLayerNormalizationWithCast",
                         .fused_op = "SimplifiedLayerNormalizationWithCast",
                         .reject = reject_beside},
                        {.name = "CastLayerNormalizationGrad",
                         .pattern = R"((dy, x, scale?, mean, inv_std_dev) => (dx, dscale, dbias) {
       wide = Cast<to=@to> (dy)
       dx, dscale, dbias = LayerNormalizationGrad<axis=@axis> (wide, x, scale, mean, inv_std_dev)
     })",
                         .fused_op = "CastLayerNormalizationGrad",
                         .reject = reject_gradient},
                        {.name = "CastSimplifiedLayerNormalizationGrad",
                         .pattern = R"((dy, x, scale?, inv_std_dev) => (dx, dscale) {
       wide = Cast<to=@to> (dy)
       dx, dscale = SimplifiedLayerNormalizationGrad<axis=@axis> (wide, x, scale, inv_std_dev)
     })",
                         .fused_op = "CastSimplifiedLayerNormalizationGrad",
                         .reject = reject_gradient}};

bool fuse_norm_cast(Graph& graph, PassContext& context) {
  const bool last = context.stage() == Stage::Joint || !context.training();
  return context.device() == Device::CUDA && last && apply_rules(graph, kRules, context);
}

}  // namespace

REGISTER_FUSION(fuse_norm_cast, fuse_norm_cast);

}  // namespace ortmodule
