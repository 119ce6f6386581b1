// Weights of 8 bits, or of 16-bit floats, that a model widens before it reads them, by a cast and a
// scale or by DequantizeLinear: a product reads them as they are and widens panels while it packs
// them, a Gather widens the rows that it reads. The op is in ops/widened_matmul.cpp. Only for
// inference, and only where the wide weights would not be a small part of the model that is
// computed once.

#include <algorithm>

#include "ops/emit.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "optimizer/dequantized.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr std::string_view kRule = "WidenedMatMul";
constexpr int64_t kSmallBytes = 64 << 10;  // of wide weights, which are then computed once

bool is_half(DType dtype) { return dtype == DType::Float16 || dtype == DType::BFloat16; }

// A constant of 8 or 16 bits, or a view of one.
bool is_small_weight(const Graph& graph, const Value& value) {
  if (!is_byte(value.dtype) && !is_half(value.dtype)) return false;
  const Value* source = &value;
  while (source->producer() && is_view(*source->producer())) source = source->producer()->input(0);
  if (!source->is_input()) return false;
  const DimExpr count = product(source->dims);
  return graph.inputs()[static_cast<size_t>(source->input_index())].kind == InputKind::Constant &&
         count.is_constant() && count.value() * 4 > kSmallBytes;
}

// A small weight of rank 2 that is widened, and transposed if `turned`.
struct Widened : Dequantized {
  bool turned = false;
};

std::optional<Widened> read_widened(const Graph& graph, Value* value) {
  bool turned = false;
  while (value->producer() && value->producer()->op == "Transpose") {
    if (value->rank() != 2) return std::nullopt;
    turned = turned != (value->producer()->attrs.integers("perm")[0] != 0);
    value = value->producer()->input(0);
  }
  if (value->rank() != 2) return std::nullopt;
  const std::optional<Dequantized> found = read_dequantized(value);
  if (!found || !is_small_weight(graph, *found->q)) return std::nullopt;
  return Widened{*found, turned};
}

// 16-bit floats are only widened.
bool has_kernel(const Widened& found) {
  return is_byte(found.q->dtype) || (!found.scale && !found.zero && found.number == 1.0);
}

std::optional<int64_t> common_axis(const Widened& found) {
  const std::optional<int64_t> scale =
      found.scale ? channel_axis(found.scale->dims, found.q->dims) : -1;
  const std::optional<int64_t> zero =
      found.zero ? channel_axis(found.zero_dims, found.q->dims) : -1;
  if (!scale || !zero || (*scale >= 0 && *zero >= 0 && *scale != *zero)) return std::nullopt;
  return std::max(*scale, *zero);
}

// x times the widened weight.
Value* emit_product(Graph& graph, Value* x, const Widened& found, int64_t axis) {
  Value* w = found.q;
  if (found.turned) {
    w = emit(graph, "Transpose", {w}, {{"perm", Dims{1, 0}}});
    if (axis >= 0) axis = 1 - axis;
  }
  return emit(graph, "WidenedMatMul",
              {x, w, as_channels(graph, found.scale), as_channels(graph, found.zero)},
              {{"axis", axis < 0 ? int64_t{1} : axis}, {"number", found.number}});
}

bool is_plain_product(const Node& node) {
  return node.op == "MatMul" || (node.op == "FusedMatMul" && !node.attrs.flag("transA") &&
                                 node.attrs.number("alpha", 1.0) == 1);
}

bool widen_in_product(Graph& graph, Node* node, PassContext& context) {
  const bool gemm = is_plain_gemm(*node);
  if ((!is_plain_product(*node) && !gemm) || node->input(1)->rank() != 2) return false;
  std::optional<Widened> found = read_widened(graph, node->input(1));
  if (!found || !has_kernel(*found) || node->input(0)->dtype != DType::Float32) return false;
  if (node->op != "MatMul" && node->attrs.flag("transB")) found->turned = !found->turned;
  const std::optional<int64_t> axis = common_axis(*found);
  if (!axis) {
    context.reject(kRule, "scales are not one number, or one per row or column", *node, true);
    return false;
  }
  if (!context.take()) return false;
  Graph::Inserting here(graph, node);
  graph.current_tag = node->tag;
  Value* y = emit_product(graph, node->input(0), *found, *axis);
  if (gemm && node->inputs().size() > 2 && node->input(2))
    y = emit(graph, "Add", {y, node->input(2)});
  graph.current_tag.clear();
  supersede(graph, node->output(), y);
  return true;
}

// --- Gather --------------------------------------------------------------------------------------
// Rows of a table that is computed from a small weight, element by element.
class RowReader {
 public:
  RowReader(Graph& graph, const Node& gather)
      : graph_(graph), table_(gather.input(0)), indices_(gather.input(1)) {}

  bool can_read() const { return table_->producer() && can_read(*table_) && finds_weight_; }
  Value* read() { return read(table_); }

 private:
  // An operand that all rows see alike.
  bool is_same_for_rows(const Value& value) const {
    return value.is_literal() || value.rank() < table_->rank() || value.dims[0] == DimExpr(1);
  }
  // One number for each row.
  bool is_column(const Value& value) const { return product(value.dims) == value.dims[0]; }

  bool can_read(const Value& value) const {
    // A row that is read alone has no dimension for those of an operand of full rank.
    if (is_same_for_rows(value))
      return value.is_literal() || value.rank() < table_->rank() || indices_->rank() > 0;
    if (value.dims[0] != table_->dims[0] || value.rank() != table_->rank()) return false;
    if (is_small_weight(graph_, value)) return finds_weight_ = true;
    if (is_column(value)) return true;
    const Node* node = value.producer();
    if (!node || op_def(node->op).kind != OpKind::Pointwise || node->outputs().size() != 1)
      return false;
    return std::all_of(node->inputs().begin(), node->inputs().end(),
                       [&](const Value* input) { return !input || can_read(*input); });
  }

  Value* read(Value* value) {
    if (is_same_for_rows(*value)) return value;
    if (is_small_weight(graph_, *value) || is_column(*value))
      return emit(graph_, "Gather", {value, indices_}, {{"axis", int64_t{0}}});
    const Node* node = value->producer();
    Values inputs;
    for (Value* input : node->inputs()) inputs.push_back(input ? read(input) : nullptr);
    return emit(graph_, node->op, inputs, node->attrs);
  }

  Graph& graph_;
  Value *table_, *indices_;
  mutable bool finds_weight_ = false;
};

bool widen_rows(Graph& graph, Node* node, PassContext& context) {
  if (node->op != "Gather" || node->attrs.integer("axis") != 0 || node->input(0)->is_literal())
    return false;
  RowReader reader(graph, *node);
  if (!reader.can_read() || !context.take()) return false;
  Graph::Inserting here(graph, node);
  graph.current_tag = node->tag;
  Value* y = reader.read();
  graph.current_tag.clear();
  supersede(graph, node->output(), y);
  return true;
}

bool reads_packed(const Node& node) {
  return node.op == "PackedMatMul" ||
         ((node.op == "Conv" || node.op == "FusedConv") && node.attrs.has("packed_outputs"));
}

// A packed weight that is kept in 16 bits, for a convolution in float16.
bool read_packed(Graph& graph, Node* node, PassContext& context) {
  if (node->input(0)->dtype != DType::Float32) return false;
  Node* cast = node->input(1)->producer();
  if (!cast || cast->op != "Cast" || !is_half(cast->input(0)->dtype)) return false;
  if (node->op != "PackedMatMul" && cast->input(0)->dtype != DType::Float16) return false;
  if (!context.take()) return false;
  graph.set_input(node, 1, cast->input(0));
  erase_if_dead(graph, cast);
  return true;
}

bool fuse_small_weights(Graph& graph, PassContext& context) {
  if (context.training()) return false;
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    changed = widen_in_product(graph, node, context) || changed;
  }
  std::vector<Node*> packed;
  for (const auto& node : graph.nodes())
    if (reads_packed(*node)) packed.push_back(node.get());
  for (Node* node : packed) changed = read_packed(graph, node, context) || changed;
  for (Node* node : graph.node_pointers()) changed = widen_rows(graph, node, context) || changed;
  return changed;
}

}  // namespace

REGISTER_FUSION(fuse_small_weights, fuse_small_weights);

}  // namespace ortmodule
