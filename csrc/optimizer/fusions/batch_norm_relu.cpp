// Fuses batch norms in training with the Relu behind them, and with the sum before the Relu that
// ends a residual block; and the gradient of the Relu with that of the norm. On CUDA, where each is
// bound by memory. After the gradient is built, which knows the norm and the Relu alone. The ops
// are in ops/batch_norm.cpp.

#include "ops/emit.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr std::string_view kGradRule = "BatchNormReluGrad";

Reason reject_sum(const Match& match) {
  if (match.dims("addend") != match.dims("x")) return "the addend is broadcast";
  return {};
}

const RuleSet kRules = {
    {.name = "BatchNormAddRelu", .fused_op = "BatchNormAddRelu", .reject = reject_sum},
    {.name = "BatchNormRelu", .fused_op = "BatchNormRelu"}};

/// The BatchNormRelu whose gradients these are, or null.
const Node* forward_of(const Node& relu_grad, const Node& norm_grad) {
  const Value& y = *relu_grad.input(1);
  const Node* forward = y.producer();
  if (!forward || forward->op != "BatchNormRelu" || forward->output(0) != &y) return nullptr;
  const bool same =
      norm_grad.input(1) == forward->input(0) && norm_grad.input(2) == forward->input(1) &&
      norm_grad.input(3) == forward->output(3) && norm_grad.input(4) == forward->output(4);
  return same ? forward : nullptr;
}

Reason cannot_fuse_gradient(const Node& relu_grad, const Node& norm_grad) {
  const Value& dz = *relu_grad.output();
  if (dz.uses().size() != 1 || dz.is_graph_output())
    return "the gradient between Relu and norm has other readers";
  if (relu_grad.input(0)->dims != dz.dims) return "dy is broadcast";
  if (size_of(norm_grad.input(3)->dtype) < size_of(DType::Float32))
    return "statistics of 16 bits do not give the sign of y again";
  if (relu_grad.tag != norm_grad.tag) return "Relu and norm have different checkpoint tags";
  return {};
}

void fuse_gradient(Graph& graph, const Node& forward, Node* relu_grad, Node* norm_grad) {
  Graph::Inserting here(graph, norm_grad);
  graph.current_tag = norm_grad->tag;
  const Node* fused = emit_node(graph, "BatchNormReluGrad",
                                {relu_grad->input(0), norm_grad->input(1), norm_grad->input(2),
                                 forward.input(2), norm_grad->input(3), norm_grad->input(4)});
  graph.current_tag.clear();
  std::vector<std::string> names;
  for (size_t i = 0; i < norm_grad->outputs().size(); ++i) {
    names.push_back(norm_grad->output(i)->name);
    fused->output(i)->dims = norm_grad->output(i)->dims;
    graph.replace_all_uses(norm_grad->output(i), fused->output(i));
  }
  erase_if_dead(graph, norm_grad);
  for (size_t i = 0; i < names.size(); ++i) fused->output(i)->name = names[i];
}

bool fuse_gradients(Graph& graph, PassContext& context) {
  bool changed = false;
  for (Node* norm_grad : graph.node_pointers()) {
    if (norm_grad->op != "BatchNormInternalGrad") continue;
    Node* relu_grad = norm_grad->input(0)->producer();
    if (!relu_grad || relu_grad->op != "ReluGrad") continue;
    const Node* forward = forward_of(*relu_grad, *norm_grad);
    if (!forward) continue;
    if (const Reason reason = cannot_fuse_gradient(*relu_grad, *norm_grad)) {
      context.reject(kGradRule, *reason, *norm_grad, true);
      continue;
    }
    if (!context.take()) break;
    fuse_gradient(graph, *forward, relu_grad, norm_grad);
    changed = true;
  }
  return changed;
}

bool fuse_batch_norm_relu(Graph& graph, PassContext& context) {
  if (context.device() != Device::CUDA || context.stage() != Stage::Joint) return false;
  const bool changed = apply_rules(graph, kRules, context);
  return fuse_gradients(graph, context) || changed;
}

}  // namespace

REGISTER_FUSION(fuse_batch_norm_relu, fuse_batch_norm_relu);

}  // namespace ortmodule
