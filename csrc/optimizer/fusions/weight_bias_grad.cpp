// Fuses the gradients of a linear layer's weight and bias, which both read dy: on CUDA the epilogue
// of the product sums the rows. Written as code, since the product has four forms and the sum often
// reads dy before it is reshaped to rows. On the CPU a separate sum is faster. The op is in
// ops/weight_bias_grad.cpp.
#include <algorithm>

#include "ops/emit.h"
#include "ops/infer_rules.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr std::string_view kRule = "WeightBiasGrad";

/// The product dy' x or x' dy over rows, and the sum of the rows of dy.
struct WeightGrad {
  Node* product = nullptr;
  Node* sum = nullptr;
  size_t dy = 0;  // operand index of dy in the product
};

bool is_backward_product(const Node& node) {
  const bool product = node.op == "MatMul" || node.op == "FusedMatMul" || node.op == "Gemm";
  return product && node.region == Region::Backward && node.input(0)->rank() == 2 &&
         node.input(1)->rank() == 2;
}

/// Whether the product contracts over the rows of both operands.
bool sums_over_rows(const Node& product) {
  if (product.op == "MatMul") return false;
  return product.attrs.flag("transA") && !product.attrs.flag("transB");
}

/// `value` before reshapes of its leading dimensions.
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

/// A node that sums the rows of `value` or of a reshape of it, or null.
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
  if (dtype == DType::Float64) return "cuBLASLt cannot sum rows of f64";
  if (product.attrs.number("alpha") != 1.0) return "the product is scaled, the sum is not";
  if (product.op == "Gemm" && product.input(2)) return "the product adds an operand";
  if (product.tag != sum.tag) return "the sum and the product have different checkpoint tags";
  // The fused op takes the product's place, so all readers of the sum must be after it.
  for (const auto& node : graph.nodes()) {
    if (node.get() == &product) return {};
    const auto& inputs = node->inputs();
    if (std::find(inputs.begin(), inputs.end(), sum.output()) != inputs.end())
      return str("the sum ", sum.output()->name, " is read before the product");
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
