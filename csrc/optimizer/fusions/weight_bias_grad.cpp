// The gradients of a linear layer's weight and bias read the same dy: on CUDA the product sums its
// rows on the way. Written as code, since the product comes in four spellings, and the sum often
// reads dy before it was reshaped to rows. On the CPU a sum of its own costs less than what a
// product of ours would need. The op is in ops/weight_bias_grad.cpp.
#include <algorithm>

#include "ops/emit.h"
#include "ops/infer_rules.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr std::string_view kRule = "WeightBiasGrad";

/// A product of dy and x over their rows, as dy' x or x' dy.
struct WeightGrad {
  Node* product = nullptr;
  Node* sum = nullptr;
  size_t dy = 0;  // which operand it is
};

bool is_backward_product(const Node& node) {
  const bool product = node.op == "MatMul" || node.op == "FusedMatMul" || node.op == "Gemm";
  return product && node.region == Region::Backward && node.input(0)->rank() == 2 &&
         node.input(1)->rank() == 2;
}

/// Whether rows are what the product sums over.
bool sums_over_rows(const Node& product) {
  if (product.op == "MatMul") return false;
  return product.attrs.flag("transA") && !product.attrs.flag("transB");
}

/// `value` before its leading dimensions were arranged otherwise.
const Value* before_reshape(const Value* value) {
  for (;;) {
    const Node* node = value->producer();
    const bool reshapes =
        node && (node->op == "Reshape" || node->op == "Squeeze" || node->op == "Unsqueeze");
    if (!reshapes || node->input(0)->rank() < 2 ||
        node->input(0)->dims.back() != value->dims.back())
      return value;
    value = node->input(0);
  }
}

bool sums_all_rows(const Node& node) {
  if (node.op != "ReduceSum" || node.region != Region::Backward) return false;
  const size_t rank = node.input(0)->rank();
  if (rank < 2 || node.attrs.flag("keepdims")) return false;
  const std::vector<int64_t> axes = reduced_axes(node.attrs, rank);
  return axes.size() == rank - 1 && axes.back() + 2 == static_cast<int64_t>(rank);
}

/// A node that sums the rows of `value`, or of what it is an arrangement of.
Node* row_sum_below(const Value& value) {
  for (const Use& use : value.uses()) {
    if (sums_all_rows(*use.node)) return use.node;
    if (!is_view(*use.node) || use.node->outputs().size() != 1) continue;
    const Value& view = *use.node->output();
    if (before_reshape(&view) != before_reshape(&value) || view.rank() < 2) continue;
    if (Node* found = row_sum_below(view)) return found;
  }
  return nullptr;
}

bool find_sum(Node& product, WeightGrad& found) {
  found.product = &product;
  for (size_t i = 0; i < 2; ++i) {
    found.dy = i;
    found.sum = row_sum_below(*before_reshape(product.input(i)));
    if (found.sum) return true;
  }
  return false;
}

Reason cannot_fuse(const Graph& graph, const WeightGrad& grad) {
  const Node &product = *grad.product, &sum = *grad.sum;
  const DType dtype = product.output()->dtype;
  if (dtype == DType::Float64) return "cuBLASLt sums no rows of f64";
  if (product.attrs.number("alpha") != 1.0) return "the product is scaled, the sum is not";
  if (product.op == "Gemm" && product.input(2)) return "the product adds an operand";
  if (product.tag != sum.tag) return "the sum is beyond the border of a checkpoint";
  // The op stands where the product did; whoever reads the sum must come later.
  for (const auto& node : graph.nodes()) {
    if (node.get() == &product) return {};
    const auto& inputs = node->inputs();
    if (std::find(inputs.begin(), inputs.end(), sum.output()) != inputs.end())
      return str("the sum ", sum.output()->name, " is read before the product is made");
  }
  return {};
}

void fuse(Graph& graph, const WeightGrad& grad) {
  Graph::Inserting here(graph, grad.product);
  graph.current_tag = grad.product->tag;
  const Node* fused = emit_node(graph, grad.dy == 0 ? "WeightBiasGrad" : "WeightBiasGradTransposed",
                                {grad.product->input(grad.dy), grad.product->input(1 - grad.dy)});
  graph.current_tag.clear();
  supersede(graph, grad.product->output(), fused->output(0));
  supersede(graph, grad.sum->output(), fused->output(1));
}

bool fuse_weight_bias_grad(Graph& graph, PassContext& context) {
  if (context.device() != Device::CUDA || context.stage() != Stage::Joint) return false;
  bool changed = false;
  std::vector<Node*> products;
  for (Node* node : graph.node_pointers())
    if (is_backward_product(*node) && sums_over_rows(*node)) products.push_back(node);
  for (Node* product : products) {
    WeightGrad grad;
    if (!find_sum(*product, grad)) continue;
    if (const Reason reason = cannot_fuse(graph, grad)) {
      context.reject(kRule, *reason, *product, true);
      continue;
    }
    if (!context.take()) break;
    fuse(graph, grad);
    changed = true;
  }
  return changed;
}

}  // namespace

REGISTER_FUSION(fuse_weight_bias_grad, fuse_weight_bias_grad);

}  // namespace ortmodule
