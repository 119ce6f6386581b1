// Fuses transposes of the operands and scaling of the operands or the result into the product:
// alpha * op(a) op(b), at no cost in BLAS. Written as code instead of 16 patterns. The op
// is in ops/matmul.cpp.

#include <cmath>

#include "ops/emit.h"
#include "ops/op_def.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr std::string_view kRule = "FusedMatMul";

bool is_product(const Node& node) { return node.op == "MatMul" || node.op == "FusedMatMul"; }

// The operands and attributes of a MatMul or FusedMatMul.
struct Product {
  Value* a = nullptr;
  Value* b = nullptr;
  double alpha = 1;
  bool trans_a = false;
  bool trans_b = false;
};

Product read_product(const Node& node) {
  Product product{node.input(0), node.input(1), 1, false, false};
  if (node.op == "MatMul") return product;
  product.alpha = node.attrs.number("alpha");
  product.trans_a = node.attrs.flag("transA");
  product.trans_b = node.attrs.flag("transB");
  return product;
}

// Replaces `result` (the result of the product, or of scaling it) by a FusedMatMul.
Node* write_product(Graph& graph, Value* result, const Product& product) {
  Node* node = result->producer();
  Graph::Inserting here(graph, node);
  graph.current_tag = node->tag;
  Node* fused = emit_node(graph, "FusedMatMul", {product.a, product.b},
                          {{"alpha", product.alpha},
                           {"transA", static_cast<int64_t>(product.trans_a)},
                           {"transB", static_cast<int64_t>(product.trans_b)}});
  graph.current_tag.clear();
  supersede(graph, result, fused->output());
  return fused;
}

bool is_power_of_two(double number) {
  int exponent = 0;
  return std::abs(std::frexp(number, &exponent)) == 0.5;
}

bool swaps_last_two(const Node& transpose) {
  const std::vector<int64_t> perm = transpose.attrs.integers("perm");
  const size_t rank = perm.size();
  if (rank < 2) return false;
  const auto axis = [&](size_t i) {
    return static_cast<size_t>(perm[i] < 0 ? perm[i] + static_cast<int64_t>(rank) : perm[i]);
  };
  for (size_t i = 0; i + 2 < rank; ++i)
    if (axis(i) != i) return false;
  return axis(rank - 2) == rank - 1;
}

// The factor by which Mul or Div with a literal scales `source`, or nullopt. `reason` is set if the
// reciprocal of a divisor is inexact.
std::optional<double> scale_of(const Node& node, Value** source, Reason& reason) {
  if (node.op != "Mul" && node.op != "Div") return {};
  for (size_t i = node.op == "Mul" ? 0 : 1; i < 2; ++i) {
    const Value* factor = node.input(i);
    if (!factor || !factor->is_literal() || !node.input(1 - i)) continue;
    const std::optional<double> number = number_of(factor->literal());
    if (!number) continue;
    *source = node.input(1 - i);
    if ((*source)->is_literal()) return {};
    if (node.op == "Mul") return number;
    if (!is_power_of_two(*number)) reason = str("dividing by ", *number, " rounds differently");
    return 1 / *number;
  }
  return {};
}

// Why scaling cannot become the product's alpha.
Reason cannot_scale(const Product& product, double scale) {
  const DType dtype = product.a->dtype;
  if (dtype != DType::Float32 && dtype != DType::Float64)
    return str(name_of(dtype), " rounds the product before it is scaled");
  if (scale == 0 || !std::isfinite(scale))
    return str("scaling by ", scale, " keeps NaN and infinities, a product's alpha does not");
  if (product.alpha != 1 && !is_power_of_two(product.alpha) && !is_power_of_two(scale))
    return "two scales round differently from one";
  return {};
}

Reason cannot_absorb(const Node& scaling, const Value& inner, const Node& product) {
  if (inner.is_graph_output()) return str("value ", inner.name, " is a graph output");
  if (inner.uses().size() > 1) return str("value ", inner.name, " is read outside the match");
  if (scaling.region != product.region)
    return str("value ", inner.name, " crosses from forward to backward");
  if (scaling.tag != product.tag)
    return str("value ", inner.name, " crosses a checkpoint boundary");
  return {};
}

// Absorbs a transpose of the last two dims. It is a view, so it may have other readers.
bool absorb_transpose(const Value& operand, Value** read, bool* trans, Reason& reason) {
  const Node* node = operand.producer();
  if (!node || node->op != "Transpose") return false;
  if (!swaps_last_two(*node)) {
    reason = str(operand.name, " moves more than the last two dims");
    return false;
  }
  *read = node->input(0);
  *trans = !*trans;
  return true;
}

// Absorbs the scaling of an operand by a power of two; other factors round each element.
bool absorb_operand_scale(const Node& node, Value** read, Product& product, Reason& reason) {
  const Node* scaling = (*read)->producer();
  if (!scaling) return false;
  Value* source = nullptr;
  const std::optional<double> scale = scale_of(*scaling, &source, reason);
  if (!scale || source->dims != (*read)->dims || source->dtype != (*read)->dtype) return false;
  if (!reason) reason = cannot_absorb(*scaling, **read, node);
  if (!reason) reason = cannot_scale(product, *scale);
  if (!reason && !is_power_of_two(*scale))
    reason = str("scaling an operand by ", *scale, " rounds differently");
  if (reason) return false;
  *read = source;
  product.alpha *= *scale;
  return true;
}

using Reasons = std::vector<std::string>;

bool fuse_operand(Graph& graph, Node*& node, size_t i, PassContext& context, Reasons& reasons) {
  Product product = read_product(*node);
  Value** read = i == 0 ? &product.a : &product.b;
  bool* trans = i == 0 ? &product.trans_a : &product.trans_b;
  Reason reason;
  const bool found = absorb_transpose(**read, read, trans, reason) ||
                     (!reason && absorb_operand_scale(*node, read, product, reason));
  if (reason) reasons.push_back(*reason);
  if (!found || !context.take()) return false;
  node = write_product(graph, node->output(), product);
  return true;
}

bool fuse_result_scale(Graph& graph, Node*& node, PassContext& context, Reasons& reasons) {
  const Value& result = *node->output();
  if (result.uses().empty()) return false;
  Node* scaling = result.uses()[0].node;
  Product product = read_product(*node);
  Value* source = nullptr;
  Reason reason;
  const std::optional<double> scale = scale_of(*scaling, &source, reason);
  if (!scale || source != &result || scaling->output()->dtype != result.dtype) return false;
  if (!reason) reason = cannot_absorb(*scaling, result, *node);
  if (!reason) reason = cannot_scale(product, *scale);
  if (reason) reasons.push_back(*reason);
  if (reason || !context.take()) return false;
  product.alpha *= *scale;
  node = write_product(graph, scaling->output(), product);
  return true;
}

// A 2-D weight with a batched operand: the weight's gradient of MatMul is one product over all
// rows, that of FusedMatMul would be one product per batch entry.
bool is_weight_product(const Node& node) {
  return node.input(1)->rank() == 2 && node.input(0)->rank() > 2;
}

bool fuse_around(Graph& graph, Node* node, PassContext& context) {
  bool changed = false;
  if (context.stage() == Stage::Forward && is_weight_product(*node)) {
    context.reject(kRule, "MatMul computes the gradient of a weight faster", *node, false);
    return false;
  }
  for (;;) {
    Reasons reasons;
    if (fuse_operand(graph, node, 0, context, reasons) ||
        fuse_operand(graph, node, 1, context, reasons) ||
        fuse_result_scale(graph, node, context, reasons)) {
      changed = true;
      continue;
    }
    for (const std::string& reason : reasons) context.reject(kRule, reason, *node, true);
    return changed;
  }
}

bool fuse_matmul(Graph& graph, PassContext& context) {
  std::vector<Node*> products;
  for (const auto& node : graph.nodes())
    if (is_product(*node)) products.push_back(node.get());
  bool changed = false;
  for (Node* node : products) changed = fuse_around(graph, node, context) || changed;
  return changed;
}

}  // namespace

REGISTER_FUSION(fuse_matmul, fuse_matmul);

}  // namespace ortmodule
