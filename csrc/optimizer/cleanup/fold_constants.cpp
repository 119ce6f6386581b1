// One walk in program order that tries a few rules, each a function, at every node. Results stay
// bitwise equal: x + 0.0 is kept because it turns -0.0 into 0.0, and 16-bit arithmetic of literals
// is kept because the kernel decides its rounding.

#include <algorithm>
#include <cmath>

#include "ops/differentiated.h"
#include "ops/emit.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "optimizer/cleanup/cleanup.h"
#include "optimizer/edit.h"

namespace ortmodule {
namespace {

std::optional<double> literal_number(const Node& node, size_t i) {
  const Value* value = node.input(i);
  return value && value->is_literal() ? number_of(value->literal()) : std::nullopt;
}

template <class T>
std::optional<double> evaluate(const std::string& op, T a, T b) {
  if (op == "Add") return static_cast<double>(a + b);
  if (op == "Sub") return static_cast<double>(a - b);
  if (op == "Mul") return static_cast<double>(a * b);
  if (op == "Div") return static_cast<double>(a / b);
  if (op == "Neg") return static_cast<double>(-a);
  if (op == "Sqrt") return static_cast<double>(std::sqrt(a));
  return {};
}

// Exact integer arithmetic of constants and symbolic sizes.
std::optional<Scalar> evaluate_sizes(const Node& node) {
  std::vector<DimExpr> sizes;
  for (const Value* input : node.inputs()) {
    const Scalar& scalar = input->literal();
    if (const auto* size = std::get_if<DimExpr>(&scalar)) {
      sizes.push_back(*size);
      continue;
    }
    const double number = std::get<double>(scalar);
    if (number != std::trunc(number) || std::abs(number) > 0x1p53) return {};
    sizes.emplace_back(static_cast<int64_t>(number));
  }
  if (node.op == "Neg" && sizes.size() == 1) return Scalar(DimExpr(0) - sizes[0]);
  if (sizes.size() != 2) return {};
  if (node.op == "Add") return Scalar(sizes[0] + sizes[1]);
  if (node.op == "Sub") return Scalar(sizes[0] - sizes[1]);
  if (node.op == "Mul") return Scalar(sizes[0] * sizes[1]);
  return {};
}

std::optional<Scalar> evaluate_literals(const Node& node) {
  const DType dtype = node.output()->dtype;
  for (const Value* input : node.inputs())
    if (!input || !input->is_literal() || input->dtype != dtype) return {};
  if (dtype == DType::Int64) return evaluate_sizes(node);
  const std::optional<double> a = literal_number(node, 0);
  const std::optional<double> b = node.inputs().size() > 1 ? literal_number(node, 1) : a;
  if (!a || !b || node.inputs().size() > 2) return {};
  std::optional<double> result;
  if (dtype == DType::Float64) result = evaluate<double>(node.op, *a, *b);
  if (dtype == DType::Float32)
    result = evaluate<float>(node.op, static_cast<float>(*a), static_cast<float>(*b));
  if (!result) return {};
  return Scalar(*result);
}

// Arithmetic whose operands are all literals.
bool fold_literals(Graph& graph, Node* node, PassContext& context) {
  if (node->inputs().empty() || node->outputs().size() != 1) return false;
  Value* output = node->output();
  if (output->is_graph_output() || output->uses().empty() || !output->dims.empty()) return false;
  const std::optional<Scalar> result = evaluate_literals(*node);
  if (!result || !context.take()) return false;
  return replace_value(graph, output, graph.literal(*result, output->dtype), false);
}

// The broadcast dims of the operands without `skipped` and literals; nullopt if there are none.
std::optional<Dims> dims_without(const Node& node, size_t skipped) {
  std::optional<Dims> dims;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const Value* input = node.input(i);
    if (i == skipped || !input || input->is_literal()) continue;
    dims = dims ? broadcast_dims(*dims, input->dims) : input->dims;
  }
  return dims;
}

// Replaces a uniform operand of a pointwise op by a literal if the others determine the shape.
bool fold_uniform_operands(Graph& graph, Node* node, PassContext& context) {
  const OpDef* op = find_op(node->op);
  if (!op || op->kind != OpKind::Pointwise) return false;
  bool changed = false;
  for (size_t i = 0; i < node->inputs().size(); ++i) {
    const Value* operand = node->input(i);
    if (!operand || operand->is_literal()) continue;
    if (node->op == "Where" && i == 0) continue;  // see fold_where; kernels take no literal there
    const std::optional<Scalar> scalar = uniform_value(*operand);
    if (!scalar || !is_stored_exactly(*scalar, operand->dtype)) continue;
    if (dims_without(*node, i) != std::optional<Dims>(node->output()->dims)) continue;
    if (!context.take()) return changed;
    Node* source = operand->producer();
    graph.set_input(node, i, graph.literal(*scalar, operand->dtype));
    erase_if_dead(graph, source);
    changed = true;
  }
  return changed;
}

// A neutral operand: the result is bitwise equal to the other one. `second_only`: only as
// operand 1.
struct Neutral {
  std::string_view op;
  double number;
  bool second_only;
  bool integers_only;
};

constexpr Neutral kNeutral[] = {
    {"Mul", 1.0, false, false}, {"Div", 1.0, true, false},   {"Pow", 1.0, true, false},
    {"Sub", 0.0, true, false},  {"Add", -0.0, false, false}, {"Add", 0.0, false, true},
    {"And", 1.0, false, false}, {"Or", 0.0, false, false},   {"Xor", 0.0, false, false},
};

bool is_neutral(const Neutral& row, const Node& node, size_t i) {
  if (row.op != node.op || (row.second_only && i == 0)) return false;
  if (row.integers_only && !is_integral(node.output()->dtype)) return false;
  const Value* value = node.input(i);
  return value && value->is_literal() && is_number(value->literal(), row.number);
}

// The operand that the node returns unchanged, or null.
Value* unchanged_operand(const Node& node) {
  if (node.op == "Dropout" || node.op == "DropoutGrad")
    return node.attrs.number("ratio") == 0 ? node.input(0) : nullptr;
  if (node.op == "Where" && node.input(1) == node.input(2)) return node.input(1);
  if (node.inputs().size() != 2) return nullptr;
  for (const Neutral& row : kNeutral)
    for (size_t i = 0; i < 2; ++i)
      if (is_neutral(row, node, i)) return node.input(1 - i);
  return nullptr;
}

bool fold_neutral(Graph& graph, Node* node, PassContext& context) {
  if (node->outputs().size() != 1) return false;
  Value* kept = unchanged_operand(*node);
  Value* output = node->output();
  if (!kept || kept->dtype != output->dtype || kept->dims != output->dims) return false;
  if (Reason reason = cannot_replace(*output, *kept, false)) {
    context.reject("neutral operand", *reason, *node, true);
    return false;
  }
  return context.take() && replace_value(graph, output, kept, false);
}

// Whether the graph has no gradients yet and will get one of the value. Removing a reader of it
// could make that gradient None where eager PyTorch returns zeros.
bool will_be_differentiated(const Graph& graph, const Value& value) {
  const auto& outputs = graph.outputs();
  const bool has_gradients = std::any_of(outputs.begin(), outputs.end(), [](const GraphOutput& o) {
    return o.kind == OutputKind::Gradient;
  });
  return !has_gradients && Differentiated(graph).contains(&value);
}

// `chosen`, expanded to the shape of the node's output. In backward, zeros become GradientZeros of
// the other operand: eager PyTorch has no gradient where that one has none.
Value* expanded(Graph& graph, const Node& node, Value* chosen, Value* other) {
  const Dims& shape = node.output()->dims;
  if (!chosen->is_literal()) return emit(graph, "Expand", {chosen}, {{"shape", shape}});
  const DType dtype = chosen->dtype;
  const double number = number_of(chosen->literal()).value_or(0.0);
  if (node.region == Region::Backward && number == 0.0 && !other->is_literal())
    return emit(graph, "GradientZeros", {other}, {{"shape", shape}, {"dtype", dtype}});
  return emit(graph, "ConstantOfShape", {},
              {{"value", number}, {"shape", shape}, {"dtype", dtype}});
}

// Where with a uniform condition.
bool fold_where(Graph& graph, Node* node, PassContext& context) {
  if (node->op != "Where" || !node->input(0)) return false;
  const std::optional<Scalar> scalar = uniform_value(*node->input(0));
  const std::optional<double> condition = scalar ? number_of(*scalar) : std::nullopt;
  Value* output = node->output();
  Value* chosen = condition ? node->input(*condition != 0 ? 1 : 2) : nullptr;
  if (!chosen || chosen->dtype != output->dtype) return false;
  if (chosen->is_literal() && !number_of(chosen->literal())) return false;  // a size
  if (chosen->is_literal() && !is_stored_exactly(chosen->literal(), chosen->dtype)) return false;
  if (Reason reason = cannot_replace(*output, *chosen, false)) {
    context.reject("known condition", *reason, *node, true);
    return false;
  }
  Value* other = node->input(chosen == node->input(1) ? 2 : 1);
  if (will_be_differentiated(graph, *other)) {
    context.reject("known condition", "the other operand needs a gradient of zeros", *node, true);
    return false;
  }
  if (!context.take()) return false;
  if (chosen->dims == output->dims) return replace_value(graph, output, chosen, false);
  Graph::Inserting here(graph, node);
  supersede(graph, output, expanded(graph, *node, chosen, other));
  return true;
}

}  // namespace

bool fold_constants(Graph& graph, PassContext& context) {
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    if (node->outputs().empty()) continue;
    // Uniform operands first: as literals they can be neutral operands.
    changed = fold_uniform_operands(graph, node, context) || changed;
    const bool replaced = fold_literals(graph, node, context) || fold_where(graph, node, context) ||
                          fold_neutral(graph, node, context);
    changed = changed || replaced;
  }
  return changed;
}

}  // namespace ortmodule
