// Fuses batch norms in training with the Relu behind them, and with the sum before the Relu that
// ends a residual block; and the gradient of the Relu with that of the norm, at the end of a
// residual block with the sum of gradients in front of it, too. On CUDA, where each is bound by
// memory. After the gradient is built, which knows the norm and the Relu alone. The ops are in
// ops/batch_norm.cpp.

#include <algorithm>

#include "ops/emit.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr std::string_view kGradRule = "BatchNormReluGrad", kSumRule = "BatchNormAddReluGrad";

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

// --- the end of a residual block -----------------------------------------------------------------
/// The sum of gradients, the gradient of the Relu that reads it, and that of the norm.
struct SumGrad {
  Node *add = nullptr, *relu = nullptr, *norm = nullptr;
};

/// The gradient of the norm of `forward` that reads dz, or null.
Node* norm_grad_of(const Node& forward, const Value& dz) {
  for (const Use& use : dz.uses()) {
    const Node& node = *use.node;
    if (node.op == "BatchNormInternalGrad" && use.index == 0 && node.input(1) == forward.input(0) &&
        node.input(2) == forward.input(1) && node.input(3) == forward.output(3) &&
        node.input(4) == forward.output(4))
      return use.node;
  }
  return nullptr;
}

bool find_sum(Node* relu_grad, SumGrad& found) {
  if (relu_grad->op != "ReluGrad") return false;
  const Node* forward = relu_grad->input(1)->producer();
  Node* add = relu_grad->input(0)->producer();
  if (!forward || forward->op != "BatchNormAddRelu" || !add || add->op != "Add") return false;
  found = {add, relu_grad, norm_grad_of(*forward, *relu_grad->output())};
  return found.norm;
}

/// Whether backward reads more of y, or of a view of it, than its sign.
bool is_kept(const Value& y) {
  return std::any_of(y.uses().begin(), y.uses().end(), [](const Use& use) {
    if (use.node->region == Region::Backward) return use.node->op != "ReluGrad";
    return is_view(*use.node) && is_kept(*use.node->output());
  });
}

Reason cannot_fuse_sum(const SumGrad& grad) {
  const Value &sum = *grad.add->output(), &y = *grad.relu->input(1), &x = *grad.norm->input(1);
  if (sum.uses().size() != 1 || sum.is_graph_output()) return "the sum has other readers";
  for (const Value* addend : {grad.add->input(0), grad.add->input(1)})
    if (addend->dims != x.dims || addend->dtype != x.dtype || addend->is_literal())
      return "an addend is not as x";
  if (y.dtype != x.dtype || y.dims != x.dims) return "y is not as x";
  if (!is_kept(y)) return "backward reads nothing but the sign of y, which is one byte";
  if (grad.add->tag != grad.norm->tag || grad.relu->tag != grad.norm->tag)
    return "sum, Relu and norm have different checkpoint tags";
  return {};
}

void fuse_sum(Graph& graph, const SumGrad& grad) {
  // In the Relu's place: others read dz before the norm's gradient may.
  Graph::Inserting here(graph, grad.relu);
  graph.current_tag = grad.norm->tag;
  const Node& norm = *grad.norm;
  const Node* fused = emit_node(graph, "BatchNormAddReluGrad",
                                {grad.add->input(0), grad.add->input(1), grad.relu->input(1),
                                 norm.input(1), norm.input(2), norm.input(3), norm.input(4)});
  graph.current_tag.clear();
  supersede(graph, grad.relu->output(), fused->output(0));
  for (size_t i = 0; i < norm.outputs().size(); ++i) {
    fused->output(i + 1)->dims = norm.output(i)->dims;
    graph.replace_all_uses(norm.output(i), fused->output(i + 1));
  }
  std::vector<std::string> names;
  for (const auto& output : norm.outputs()) names.push_back(output->name);
  erase_if_dead(graph, grad.norm);
  for (size_t i = 0; i < names.size(); ++i) fused->output(i + 1)->name = names[i];
}

bool fuse_sums(Graph& graph, PassContext& context) {
  bool changed = false;
  std::vector<Node*> relu_grads;
  for (Node* node : graph.node_pointers())
    if (node->op == "ReluGrad") relu_grads.push_back(node);
  for (Node* relu_grad : relu_grads) {
    SumGrad grad;
    if (!find_sum(relu_grad, grad)) continue;
    if (const Reason reason = cannot_fuse_sum(grad)) {
      context.reject(kSumRule, *reason, *grad.norm, true);
      continue;
    }
    if (!context.take()) break;
    fuse_sum(graph, grad);
    changed = true;
  }
  return changed;
}

bool fuse_batch_norm_relu(Graph& graph, PassContext& context) {
  if (context.device() != Device::CUDA || context.stage() != Stage::Joint) return false;
  bool changed = apply_rules(graph, kRules, context);
  changed = fuse_gradients(graph, context) || changed;
  return fuse_sums(graph, context) || changed;
}

}  // namespace

REGISTER_FUSION(fuse_batch_norm_relu, fuse_batch_norm_relu);

}  // namespace ortmodule
