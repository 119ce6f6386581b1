#include "optimizer/pipeline.h"

#include <algorithm>

#include "optimizer/cleanup/cleanup.h"
#include "optimizer/layout/lines_as_images.h"
#include "optimizer/layout/pack_integer_weights.h"
#include "optimizer/layout/pack_weights.h"
#include "optimizer/layout/pixels_as_rows.h"
#include "optimizer/layout/prefer_channels_last.h"
#include "optimizer/layout/widen_halves.h"
#include "optimizer/pass_manager.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

// Finds factors that are both dequantized, before scales behind the product change the weights.
constexpr std::string_view kFirstFusion = "fuse_quantized_product";

// Other fusions whose order matters; the others follow in order of their names.
constexpr std::string_view kOrderedFusions[] = {
    // Finds the scales of weights before products absorb them.
    "fuse_small_weights",
    // Makes activations that others take as epilogues.
    "fuse_activations",
    // Before BiasSoftmax takes the mask.
    "fuse_attention",
    "fuse_trained_attention",
    // Of the attention that these found as well.
    "fuse_shared_heads",
    // Makes the Gelu that fuse_bias_gelu matches.
    "fuse_gelu",
    // Fuses product, bias and Gelu; BiasGelu would take away bias and Gelu.
    "fuse_gemm_gelu",
    // BiasDropout takes the residual sum before SkipLayerNormalization can: dropout and sum are
    // then
    // one pointwise group, and the norm does not read the result of dropout again.
    "fuse_bias_dropout",
    "fuse_skip_layer_norm",
};

void add_fusions(std::vector<Pass>& passes) {
  for (std::string_view name : kOrderedFusions) passes.push_back(pass_of(fusion_named(name)));
  for (const Fusion* fusion : all_fusions())
    if (fusion->name != kFirstFusion &&
        std::count(std::begin(kOrderedFusions), std::end(kOrderedFusions), fusion->name) == 0)
      passes.push_back(pass_of(*fusion));
}

// Rejects unknown names, so that a typo does not silently disable nothing.
void check_names(const OptimizerOptions& options) {
  if (options.disabled.empty()) return;
  std::set<std::string> known = all_passes();
  known.emplace(kGroupPointwise);
  for (const std::string& name : options.disabled) {
    std::string all;
    for (const std::string& pass : known) all += (all.empty() ? "" : ", ") + pass;
    ORTM_CHECK(known.contains(name), "[optimizer] a disabled pass must exist, but found '", name,
               "'; passes are ", all);
  }
}

}  // namespace

std::vector<Pass> forward_passes() {
  std::vector<Pass> passes = {
      // First: a dead reader of an inner value makes every pattern fail.
      {"eliminate_dead_code", eliminate_dead_code},
      {"canonicalize", canonicalize},
      // Makes casts for the passes that follow.
      {"widen_halves", widen_halves},
      // Before casts and views: those of a tensor that becomes a literal vanish with it.
      {"fold_constants", fold_constants},
      {"remove_redundant_casts", remove_redundant_casts},
      {"remove_redundant_views", remove_redundant_views},
      // Last of the cleanup, when equal nodes have equal operands. Before the fusions, which see
      // all readers of a value only after its duplicates are merged.
      {"eliminate_common_subexpressions", eliminate_common_subexpressions},
      pass_of(fusion_named(kFirstFusion)),
      // Before the other fusions, whose ops it does not know.
      {"fold_into_weights", fold_into_weights},
  };
  add_fusions(passes);
  // After the fusions, since their ops decide how layouts propagate.
  passes.push_back({"lines_as_images", lines_as_images});
  passes.push_back({"prefer_channels_last", prefer_channels_last});
  passes.push_back({"pixels_as_rows", pixels_as_rows});
  // Last: no other pass knows their ops.
  passes.push_back({"pack_weights", pack_weights});
  passes.push_back({"pack_integer_weights", pack_integer_weights});
  return passes;
}

std::vector<Pass> joint_passes() {
  std::vector<Pass> passes = {
      // Unused gradients, and forward nodes that only they read.
      {"eliminate_dead_code", eliminate_dead_code},
      {"fold_constants", fold_constants},
      {"remove_redundant_casts", remove_redundant_casts},
      {"remove_redundant_views", remove_redundant_views},
      // Before common subexpressions are merged: it needs slice gradients with a single reader.
      {"merge_slice_gradients", merge_slice_gradients},
      {"eliminate_common_subexpressions", eliminate_common_subexpressions},
      {"accumulate_gather_gradients", accumulate_gather_gradients},
      // Before the passes that find other ways to the sign of a Relu's result.
      pass_of(fusion_named("fuse_batch_norm_relu")),
      {"read_relu_sign_later", read_relu_sign_later},
      // Handles the rest, without such a later value.
      {"keep_relu_sign", keep_relu_sign},
  };
  // The gradient of a product adds transposes and scales.
  passes.push_back(pass_of(fusion_named("fuse_matmul")));
  // Matches the products with transposed dy that fuse_matmul makes.
  passes.push_back(pass_of(fusion_named("fuse_weight_bias_grad")));
  passes.push_back(pass_of(fusion_named("fuse_norm_cast")));
  // Takes the sum behind the gradients that fuse_norm_cast makes as well.
  passes.push_back(pass_of(fusion_named("fuse_skip_norm_grad")));
  // After common subexpressions are merged, which would undo it.
  passes.push_back({"copy_channels_last_again", copy_channels_last_again});
  passes.push_back({"lay_out_conv_gradients", lay_out_conv_gradients});
  return passes;
}

std::set<std::string> passes_beyond(OptimizationLevel level) {
  const std::set<std::string> layouts = {
      "widen_halves",   "lines_as_images",          "prefer_channels_last",
      "pixels_as_rows", "copy_channels_last_again", "lay_out_conv_gradients"};
  std::set<std::string> fusions;
  for (const Fusion* fusion : all_fusions()) fusions.emplace(fusion->name);
  std::set<std::string> beyond;
  if (level < OptimizationLevel::Fusions) beyond.emplace(kGroupPointwise);
  for (const auto& passes : {forward_passes(), joint_passes()})
    for (const Pass& pass : passes) {
      OptimizationLevel of = OptimizationLevel::Cleanup;
      if (fusions.contains(pass.name)) of = OptimizationLevel::Fusions;
      if (layouts.contains(pass.name)) of = OptimizationLevel::Layouts;
      // Its arithmetic on weights is for those who compute it once.
      if (pass.name == "fold_into_weights" || pass.name.starts_with("pack_"))
        of = OptimizationLevel::All;
      if (of > level) beyond.insert(pass.name);
    }
  return beyond;
}

std::set<std::string> all_passes() {
  std::set<std::string> names;
  for (const auto& passes : {forward_passes(), joint_passes()})
    for (const Pass& pass : passes) names.insert(pass.name);
  return names;
}

std::set<std::string> packing_passes() {
  std::set<std::string> names;
  for (const Pass& pass : forward_passes())
    if (pass.name.starts_with("pack_")) names.insert(pass.name);
  return names;
}

PassReport optimize_forward(Graph& graph, const OptimizerOptions& options) {
  check_names(options);
  return run_passes(graph, Stage::Forward, forward_passes(), options);
}

PassReport optimize_joint(Graph& graph, const OptimizerOptions& options) {
  check_names(options);
  return run_passes(graph, Stage::Joint, joint_passes(), options);
}

}  // namespace ortmodule
