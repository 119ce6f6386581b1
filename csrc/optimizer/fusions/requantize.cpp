// Lets a scaled product of integers, or a sum, product or concatenation of dequantized tensors,
// quantize its result, as QuantizeLinear behind it would: the real numbers need no memory.
// clamp(round(y / scale) + zero), with Relu before it or not. QLinearMul's clamp(round(y + zero))
// of a scaled product of integers is another op.

#include <algorithm>
#include <utility>

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

/// A tensor of bytes with one scale.
std::optional<Dequantized> read_term(Value* value) {
  if (value->is_literal()) return std::nullopt;
  std::optional<Dequantized> term = read_dequantized(value);
  if (!term || !is_byte(term->q->dtype) || !term->scale || term->q->dims != value->dims ||
      !is_one(*term->scale) || (term->zero && !is_one(*term->zero)))
    return std::nullopt;
  return term;
}

/// Whether pointwise nodes make `value` of `bytes` alone: a group of these and a product of both is
/// a function of one byte, whose 256 values are looked up.
bool is_made_of(const Value& value, const Value& bytes, int& steps) {
  if (&value == &bytes || value.is_literal() || is_one(value)) return true;
  const Node* node = value.producer();
  if (!node || op_def(node->op).kind != OpKind::Pointwise || --steps < 0) return false;
  return std::ranges::all_of(node->inputs(), [&](const Value* input) {
    return !input || is_made_of(*input, bytes, steps);
  });
}

bool is_made_of(const Value& value, const Value& bytes) {
  int most_steps = 64;
  return is_made_of(value, bytes, most_steps);
}

using Terms = std::vector<Dequantized>;

/// Puts the first term that has the sizes first; false if none has, or if one is made of the other.
bool put_in_order(Terms& terms, const Node& node) {
  const Dims& sizes = node.output()->dims;
  if (terms[0].q->dims != sizes) std::swap(terms[0], terms[1]);
  if (terms[0].q->dims != sizes) return false;
  const Value &a = *terms[0].q, &b = *terms[1].q;
  return node.op != "Mul" || (!is_made_of(a, b) && !is_made_of(b, a));
}

/// What a sum, a product or a concatenation is of; nothing if not of such tensors, or of a sum or
/// product of which no term has the sizes; the first one has them. Of the product that ends a
/// dequantization: its tensor.
std::optional<Terms> read_terms(const Node& node) {
  if (node.op == "Mul")
    if (const std::optional<Dequantized> term = read_term(node.output())) return Terms{*term};
  const bool pair = node.op == "Add" || node.op == "Mul";
  if (!pair && node.op != "Concat") return std::nullopt;
  Terms terms;
  for (Value* input : node.inputs()) {
    const std::optional<Dequantized> term = input ? read_term(input) : std::nullopt;
    if (!term) return std::nullopt;
    terms.push_back(*term);
  }
  if (!pair) return terms;
  return put_in_order(terms, node) ? std::optional(terms) : std::nullopt;
}

/// The factors of a product of integers; nothing if it is of others.
std::optional<Terms> read_integer_factors(const Node& node) {
  if (node.op != "Mul") return std::nullopt;
  Terms factors;
  for (Value* input : node.inputs()) {
    if (input->is_literal()) return std::nullopt;
    const std::optional<Dequantized> factor = read_dequantized(input);
    if (!factor || factor->scale || factor->number != 1.0 || !is_byte(factor->q->dtype) ||
        factor->q->dims != input->dims || (factor->zero && !is_one(*factor->zero)))
      return std::nullopt;
    factors.push_back(*factor);
  }
  return put_in_order(factors, node) ? std::optional(factors) : std::nullopt;
}

/// How a product of integers is scaled and rounded.
struct Rounding {
  Values factors;  // two, one behind the other
  Value *zero = nullptr, *result = nullptr;
};

std::optional<Rounding> read_rounding(const Node& product) {
  Rounding found;
  const Value* y = product.output();
  while (found.factors.size() < 2) {
    const Node* mul = only_reader(*y, "Mul");
    if (!mul) return std::nullopt;
    Value* number = mul->input(mul->input(0) == y ? 1 : 0);
    if (!is_one(*number) || number->dtype != DType::Float32 || mul->output()->dims != y->dims)
      return std::nullopt;
    found.factors.push_back(number);
    y = mul->output();
  }
  if (const Node* add = only_reader(*y, "Add")) {
    found.zero = zero_of(*add, *y);
    if (!is_one(*found.zero) || add->output()->dims != y->dims) return std::nullopt;
    y = add->output();
  }
  const Node* round = only_reader(*y, "Round");
  const Node* clip = round ? only_reader(*round->output(), "Clip") : nullptr;
  const Node* cast = clip ? only_reader(*clip->output(), "Cast") : nullptr;
  if (!cast) return std::nullopt;
  found.result = cast->output();
  const DType dtype = found.result->dtype;
  if (!is_byte(dtype) || !has_range_of(*clip, dtype) || (found.zero && found.zero->dtype != dtype))
    return std::nullopt;
  return found;
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

// The kernel spreads a row while it lays it out as a.
Value* spread(Graph& graph, Value* b, const Value& a) {
  return b->dims == a.dims ? b : emit(graph, "Expand", {b}, {{"shape", a.dims}});
}

Value* emit_pair(Graph& graph, std::string_view op, const Terms& terms, const Quantizing& found) {
  const Dequantized &a = terms[0], &b = terms[1];
  Value* q = spread(graph, b.q, *a.q);
  return emit(graph, op, {a.q, q, a.scale, b.scale, a.zero, b.zero, found.scale, found.zero},
              {{"relu", int64_t{found.relu}}});
}

Value* emit_term(Graph& graph, const Dequantized& x, const Quantizing& found) {
  return emit(graph, "Requantize", {x.q, x.scale, x.zero, found.scale, found.zero},
              {{"relu", int64_t{found.relu}}});
}

Value* emit_end(Graph& graph, const Node& node, const std::optional<Terms>& terms,
                const Quantizing& found) {
  if (!terms) return emit_product(graph, node, found);
  if (node.op == "Add") return emit_pair(graph, "QuantizedAdd", *terms, found);
  if (node.op == "Mul" && terms->size() == 2)
    return emit_pair(graph, "QuantizedMul", *terms, found);
  Values parts;
  for (const Dequantized& x : *terms) parts.push_back(emit_term(graph, x, found));
  return node.op == "Mul" ? parts[0] : emit(graph, "Concat", std::move(parts), node.attrs);
}

bool fuse_end(Graph& graph, Node* node, PassContext& context) {
  const std::optional<Terms> terms = read_terms(*node);
  const std::optional<Quantizing> found = read_quantizing(*node);
  if (!found || !context.take()) return false;
  Graph::Inserting here(graph, found->result->producer());
  graph.current_tag = node->tag;
  Value* y = emit_end(graph, *node, terms, *found);
  graph.current_tag.clear();
  supersede(graph, found->result, y);
  return true;
}

bool fuse_integer_mul(Graph& graph, Node* node, PassContext& context) {
  const std::optional<Terms> factors = read_integer_factors(*node);
  const std::optional<Rounding> found = factors ? read_rounding(*node) : std::nullopt;
  if (!found || found->result->dtype != factors->at(0).q->dtype || !context.take()) return false;
  const Dequantized &a = factors->at(0), &b = factors->at(1);
  Graph::Inserting here(graph, found->result->producer());
  graph.current_tag = node->tag;
  Value* y = emit(graph, "QuantizedIntegerMul",
                  {a.q, spread(graph, b.q, *a.q), a.zero, b.zero, found->factors[0],
                   found->factors[1], found->zero});
  graph.current_tag.clear();
  supersede(graph, found->result, y);
  return true;
}

bool fuse_requantize(Graph& graph, PassContext& context) {
  if (context.training() || context.device() != Device::Host) return false;
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes())
    if ((is_product(*node) && !node->input(kScale)) || read_terms(*node) ||
        read_integer_factors(*node))
      nodes.push_back(node.get());
  bool changed = false;
  for (Node* node : nodes)
    changed = fuse_end(graph, node, context) || fuse_integer_mul(graph, node, context) || changed;
  return changed;
}

}  // namespace

REGISTER_FUSION(fuse_requantize, fuse_requantize);

}  // namespace ortmodule
