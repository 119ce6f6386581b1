#include "optimizer/pipeline.h"

#include <algorithm>

#include "optimizer/cleanup/cleanup.h"
#include "optimizer/layout/prefer_channels_last.h"
#include "optimizer/pass_manager.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

// Fusions whose order matters; all others follow by name.
constexpr std::string_view kOrderedFusions[] = {
    // Makes the Gelu that BiasGelu takes.
    "fuse_gelu",
    // Takes product, bias and Gelu at once, where BiasGelu would leave the product alone.
    "fuse_gemm_gelu",
    // BiasDropout takes the residual sum before SkipLayerNormalization can: one pointwise group
    // then writes the sum once, where the norm would have to read the dropout's result first.
    "fuse_bias_dropout",
    "fuse_skip_layer_norm",
};

void add_fusions(std::vector<Pass>& passes) {
  for (std::string_view name : kOrderedFusions) passes.push_back(pass_of(fusion_named(name)));
  for (const Fusion* fusion : all_fusions())
    if (std::count(std::begin(kOrderedFusions), std::end(kOrderedFusions), fusion->name) == 0)
      passes.push_back(pass_of(*fusion));
}

// A misspelled name would be a switch that silently does nothing.
void check_names(const OptimizerOptions& options) {
  if (options.disabled.empty()) return;
  std::set<std::string> known;
  for (const auto& passes : {forward_passes(), joint_passes()})
    for (const Pass& pass : passes) known.insert(pass.name);
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
      // First, since a dead reader would keep a value out of every pattern.
      {"eliminate_dead_code", eliminate_dead_code},
      {"canonicalize", canonicalize},
      // Before casts and views: a tensor that becomes a literal takes its casts and views along.
      {"fold_constants", fold_constants},
      {"remove_redundant_casts", remove_redundant_casts},
      {"remove_redundant_views", remove_redundant_views},
      // Last of the cleanup: equal nodes are found when their operands are spelled alike, and a
      // value that is computed twice has one reader too few for the fusions to refuse.
      {"eliminate_common_subexpressions", eliminate_common_subexpressions},
  };
  add_fusions(passes);
  // On what the fusions left: each node says what it does to a layout.
  passes.push_back({"prefer_channels_last", prefer_channels_last});
  return passes;
}

std::vector<Pass> joint_passes() {
  std::vector<Pass> passes = {
      // The gradient of what needs none, and forward nodes that only it kept.
      {"eliminate_dead_code", eliminate_dead_code},
      {"fold_constants", fold_constants},
      {"remove_redundant_casts", remove_redundant_casts},
      // Detach has done its work once the gradient exists.
      {"remove_redundant_views", remove_redundant_views},
      // Before equal nodes are merged: a piece with two readers is no piece of one sum.
      {"merge_slice_gradients", merge_slice_gradients},
      {"eliminate_common_subexpressions", eliminate_common_subexpressions},
      {"accumulate_gather_gradients", accumulate_gather_gradients},
      {"read_relu_sign_later", read_relu_sign_later},
      // What has no such later value.
      {"keep_relu_sign", keep_relu_sign},
  };
  // The gradient of a product brings its own transposes and scales.
  passes.push_back(pass_of(fusion_named("fuse_matmul")));
  // Looks for a product that reads dy transposed.
  passes.push_back(pass_of(fusion_named("fuse_weight_bias_grad")));
  // After equal nodes were merged, which would undo it.
  passes.push_back({"copy_channels_last_again", copy_channels_last_again});
  return passes;
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
