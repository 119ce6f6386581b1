// Weights of 8 bits that a model widens before it reads them, by a cast and a scale or by
// DequantizeLinear: a product reads them as they are and widens panels while it packs them, a
// Gather widens the rows that it reads. The op is in ops/widened_matmul.cpp. Only for inference,
// and only where the wide weights would not be a small part of the model that is computed once.

#include <algorithm>

#include "ops/emit.h"
#include "ops/op_def.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr std::string_view kRule = "WidenedMatMul";
constexpr int64_t kSmallBytes = 64 << 10;  // of wide weights, which are then computed once

bool is_byte(DType dtype) { return dtype == DType::Int8 || dtype == DType::UInt8; }
bool is_one(const Value& value) { return product(value.dims) == DimExpr(1); }

// A constant of 8 bits, or a view of one.
bool is_small_weight(const Graph& graph, const Value& value) {
  if (!is_byte(value.dtype)) return false;
  const Value* source = &value;
  while (source->producer() && is_view(*source->producer())) source = source->producer()->input(0);
  if (!source->is_input()) return false;
  const DimExpr count = product(source->dims);
  return graph.inputs()[static_cast<size_t>(source->input_index())].kind == InputKind::Constant &&
         count.is_constant() && count.value() * 4 > kSmallBytes;
}

const Node* made_by(const Value* value, std::string_view op) {
  const Node* node = value->producer();
  return node && node->op == op ? node : nullptr;
}

// What widens a weight: (w - zero) * scale, transposed if `turned`.
struct Widened {
  Value* w = nullptr;
  Value* scale = nullptr;  // or null
  double number = 1.0;     // instead of it
  Value* zero = nullptr;   // or null
  Dims zero_dims;          // as w sees it
  bool turned = false;
};

// The operand of a cast, through casts that widen.
Value* before_casts(Value* value) {
  while (const Node* cast = made_by(value, "Cast")) value = cast->input(0);
  return value;
}

// w, or w less its zero point, in 32 bits.
bool read_centred(const Graph& graph, Value* value, Widened& found) {
  Value* source = before_casts(value);
  if (const Node* sub = made_by(source, "Sub"); sub && sub->input(1)) {
    // A zero point is reshaped before or behind its cast.
    Value* zero = sub->input(1);
    found.zero_dims = zero->dims;
    zero = before_casts(zero);
    if (const Node* view = zero->producer(); view && view->op == "Reshape")
      zero = before_casts(view->input(0));
    if (zero->is_literal() || !is_byte(zero->dtype)) return false;
    found.zero = zero;
    source = before_casts(sub->input(0));
  }
  found.w = source;
  return is_small_weight(graph, *source) && (!found.zero || found.zero->dtype == source->dtype);
}

std::optional<Widened> read_widened(const Graph& graph, Value* value) {
  Widened found;
  while (const Node* transpose = made_by(value, "Transpose")) {
    if (value->rank() != 2) return std::nullopt;
    found.turned = found.turned != (transpose->attrs.integers("perm")[0] != 0);
    value = transpose->input(0);
  }
  if (value->dtype != DType::Float32 || value->rank() != 2) return std::nullopt;
  if (made_by(value, "Cast") && read_centred(graph, value, found)) return found;
  const Node* mul = made_by(value, "Mul");
  for (size_t i = 0; mul && i < 2; ++i) {
    Value *scale = mul->input(1 - i), *centred = mul->input(i);
    if (centred->is_literal() || centred->dims != value->dims) continue;
    const std::optional<double> number =
        scale->is_literal() ? number_of(scale->literal()) : std::nullopt;
    if (scale->is_literal() ? !number : scale->dtype != DType::Float32 || scale->rank() > 2)
      continue;
    found.zero = nullptr;
    if (!read_centred(graph, centred, found)) continue;
    if (number)
      found.number = *number;
    else
      found.scale = scale;
    return found;
  }
  return std::nullopt;
}

// The axis of w along which a scale or zero point of these dims changes; -1: it is one number.
std::optional<int64_t> axis_of(const Dims& dims, const Value& w) {
  if (product(dims) == DimExpr(1)) return -1;
  if (dims == Dims{w.dims[1]} || dims == Dims{1, w.dims[1]}) return 1;
  if (dims == Dims{w.dims[0], 1}) return 0;
  return std::nullopt;
}

std::optional<int64_t> common_axis(const Widened& found) {
  const std::optional<int64_t> scale = found.scale ? axis_of(found.scale->dims, *found.w) : -1;
  const std::optional<int64_t> zero = found.zero ? axis_of(found.zero_dims, *found.w) : -1;
  if (!scale || !zero || (*scale >= 0 && *zero >= 0 && *scale != *zero)) return std::nullopt;
  return std::max(*scale, *zero);
}

Value* as_list(Graph& graph, Value* value) {
  if (!value) return nullptr;
  const Dims dims = is_one(*value) ? Dims{} : Dims{product(value->dims)};
  return value->dims == dims ? value : emit(graph, "Reshape", {value}, {{"shape", dims}});
}

// x times the widened weight.
Value* emit_product(Graph& graph, Value* x, const Widened& found, int64_t axis) {
  Value* w = found.w;
  if (found.turned) {
    w = emit(graph, "Transpose", {w}, {{"perm", Dims{1, 0}}});
    if (axis >= 0) axis = 1 - axis;
  }
  return emit(graph, "WidenedMatMul",
              {x, w, as_list(graph, found.scale), as_list(graph, found.zero)},
              {{"axis", axis < 0 ? int64_t{1} : axis}, {"number", found.number}});
}

bool is_plain_gemm(const Node& node) {
  return node.op == "Gemm" && !node.attrs.flag("transA") && node.attrs.number("alpha", 1.0) == 1 &&
         node.attrs.number("beta", 1.0) == 1;
}

bool widen_in_product(Graph& graph, Node* node, PassContext& context) {
  const bool gemm = is_plain_gemm(*node);
  if ((node->op != "MatMul" && !gemm) || node->input(1)->rank() != 2) return false;
  std::optional<Widened> found = read_widened(graph, node->input(1));
  if (!found || node->input(0)->dtype != DType::Float32) return false;
  if (gemm && node->attrs.flag("transB")) found->turned = !found->turned;
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

bool fuse_small_weights(Graph& graph, PassContext& context) {
  if (context.training()) return false;
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    changed = widen_in_product(graph, node, context) || changed;
  }
  for (Node* node : graph.node_pointers()) changed = widen_rows(graph, node, context) || changed;
  return changed;
}

}  // namespace

REGISTER_FUSION(fuse_small_weights, fuse_small_weights);

}  // namespace ortmodule
