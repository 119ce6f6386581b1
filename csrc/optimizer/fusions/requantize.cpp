// Lets a scaled product of integers, or a sum of dequantized tensors, quantize its result, as
// QuantizeLinear behind it would: the real numbers need no memory. clamp(round(y / scale) + zero),
// with Relu before it or not.

#include "ops/emit.h"
#include "ops/infer_rules.h"
#include "optimizer/dequantized.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr size_t kScale = 7;  // operand of the products, before the zero point

bool is_product(const Node& node) {
  return node.op == "MatMulIntegerToFloat" || node.op == "ConvIntegerToFloat";
}

struct Quantizing {
  bool relu = false;
  Value *scale = nullptr, *zero = nullptr, *result = nullptr;
};

bool is_one(const Value& value) { return !value.is_literal() && product(value.dims) == DimExpr(1); }

// The zero point of Add(rounded, Cast(zero)).
Value* zero_of(const Node& add, const Value& rounded) {
  Value* point = add.input(0) == &rounded ? add.input(1) : add.input(0);
  while (point->producer() &&
         (point->producer()->op == "Cast" || point->producer()->op == "Reshape"))
    point = point->producer()->input(0);
  return point;
}

bool has_range_of(const Node& clip, DType dtype) {
  const double least = dtype == DType::UInt8 ? 0 : -128;
  return clip.attrs.number("min", 1) == least && clip.attrs.number("max", 0) == least + 255;
}

std::optional<Quantizing> read_quantizing(const Node& product) {
  Quantizing found;
  const Value* y = product.output();
  if (const Node* relu = only_reader(*y, "Relu")) {
    found.relu = true;
    y = relu->output();
  }
  const Node* div = only_reader(*y, "Div");
  if (!div || div->input(0) != y || !is_one(*div->input(1)) || div->output()->dims != y->dims)
    return std::nullopt;
  found.scale = div->input(1);
  const Node* round = only_reader(*div->output(), "Round");
  const Node* add = round ? only_reader(*round->output(), "Add") : nullptr;
  const Node* clip = add ? only_reader(*add->output(), "Clip") : nullptr;
  const Node* cast = clip ? only_reader(*clip->output(), "Cast") : nullptr;
  if (!cast || add->output()->dims != y->dims) return std::nullopt;
  found.zero = zero_of(*add, *round->output());
  found.result = cast->output();
  const DType dtype = found.result->dtype;
  if (!is_one(*found.zero) || found.zero->dtype != dtype) return std::nullopt;
  if ((dtype != DType::UInt8 && dtype != DType::Int8) || !has_range_of(*clip, dtype))
    return std::nullopt;
  return found;
}

/// What a sum of tensors adds: bytes with one scale each.
std::optional<Dequantized> read_term(Value* value, const Node& sum) {
  if (value->is_literal() || value->dims != sum.output()->dims) return std::nullopt;
  std::optional<Dequantized> term = read_dequantized(value);
  if (!term || !is_byte(term->q->dtype) || !term->scale || term->q->dims != value->dims ||
      !is_one(*term->scale) || (term->zero && !is_one(*term->zero)))
    return std::nullopt;
  return term;
}

Value* emit_product(Graph& graph, const Node& node, const Quantizing& found) {
  Values operands = node.inputs();
  operands.resize(kScale + 2, nullptr);
  operands[kScale] = found.scale;
  operands[kScale + 1] = found.zero;
  Attrs attrs = node.attrs;
  attrs.set("relu", int64_t{found.relu});
  return emit(graph, node.op, std::move(operands), std::move(attrs));
}

struct Terms {
  Dequantized a, b;
};

std::optional<Terms> read_sum(const Node& node) {
  if (node.op != "Add") return std::nullopt;
  const std::optional<Dequantized> a = read_term(node.input(0), node);
  const std::optional<Dequantized> b = a ? read_term(node.input(1), node) : std::nullopt;
  return b ? std::optional(Terms{*a, *b}) : std::nullopt;
}

Value* emit_sum(Graph& graph, const Terms& sum, const Quantizing& found) {
  return emit(
      graph, "QuantizedAdd",
      {sum.a.q, sum.b.q, sum.a.scale, sum.b.scale, sum.a.zero, sum.b.zero, found.scale, found.zero},
      {{"relu", int64_t{found.relu}}});
}

bool fuse_end(Graph& graph, Node* node, PassContext& context) {
  const std::optional<Terms> sum = read_sum(*node);
  const std::optional<Quantizing> found = read_quantizing(*node);
  if (!found || !context.take()) return false;
  Graph::Inserting here(graph, found->result->producer());
  graph.current_tag = node->tag;
  Value* y = sum ? emit_sum(graph, *sum, *found) : emit_product(graph, *node, *found);
  graph.current_tag.clear();
  supersede(graph, found->result, y);
  return true;
}

bool fuse_requantize(Graph& graph, PassContext& context) {
  if (context.training() || context.device() != Device::Host) return false;
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes())
    if ((is_product(*node) && !node->input(kScale)) || read_sum(*node)) nodes.push_back(node.get());
  bool changed = false;
  for (Node* node : nodes) changed = fuse_end(graph, node, context) || changed;
  return changed;
}

}  // namespace

REGISTER_FUSION(fuse_requantize, fuse_requantize);

}  // namespace ortmodule
