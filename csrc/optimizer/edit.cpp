#include "optimizer/edit.h"

#include <algorithm>
#include <cmath>

#include "ops/op_def.h"

namespace ortmodule {

bool is_view(const Node& node) {
  const OpDef* op = find_op(node.op);
  return op && op->kind == OpKind::View;
}

bool is_dead(const Node& node) {
  const bool used = std::any_of(
      node.outputs().begin(), node.outputs().end(),
      [](const Value* output) { return !output->uses().empty() || output->is_graph_output(); });
  if (used) return false;
  const OpDef* op = find_op(node.op);
  return op && !is_impure(node);
}

void erase_if_dead(Graph& graph, std::vector<Node*> nodes, std::vector<int>& erased) {
  // A node is never visited after it was erased: only its readers add it, they are erased before,
  // and it is in the list at most once.
  while (!nodes.empty()) {
    Node* next = nodes.back();
    nodes.pop_back();
    if (!is_dead(*next)) continue;
    for (Value* operand : next->inputs()) {
      Node* producer = operand ? operand->producer() : nullptr;
      if (producer && !std::count(nodes.begin(), nodes.end(), producer)) nodes.push_back(producer);
    }
    erased.push_back(next->id());
    graph.erase(next);
  }
}

void erase_if_dead(Graph& graph, Node* node) {
  std::vector<int> erased;
  if (node) erase_if_dead(graph, std::vector<Node*>{node}, erased);
}

bool reaches_output(const Value& value) {
  if (value.is_graph_output()) return true;
  return std::any_of(value.uses().begin(), value.uses().end(), [](const Use& use) {
    if (use.index != 0 || !is_view(*use.node)) return false;
    const auto& outputs = use.node->outputs();
    return std::any_of(outputs.begin(), outputs.end(),
                       [](const Value* output) { return reaches_output(*output); });
  });
}

namespace {

const Value* storage_root(const Value* value) {
  while (value->producer() && is_view(*value->producer())) value = value->producer()->input(0);
  return value;
}

}  // namespace

Reason cannot_replace(const Value& from, const Value& to, bool is_view) {
  if (from.is_graph_output() && (to.is_input() || to.is_literal()))
    return str("output ", from.name, " would alias the input ", to.name);
  if (from.is_graph_output() && to.is_graph_output())
    return str("outputs ", from.name, " and ", to.name, " would alias");
  if (is_view || !reaches_output(from)) return {};
  const Value* root = storage_root(&to);
  if (root->is_input() || reaches_output(*root))
    return str("an output computed from ", from.name, " would share memory with ", root->name);
  return {};
}

bool replace_value(Graph& graph, Value* from, Value* to, bool is_view) {
  if (cannot_replace(*from, *to, is_view)) return false;
  graph.replace_all_uses(from, to);
  erase_if_dead(graph, from->producer());
  return true;
}

void supersede(Graph& graph, Value* from, Value* fresh) {
  // The dims may be equal expressions in another form; the readers keep the form that they used.
  fresh->dims = from->dims;
  graph.replace_all_uses(from, fresh);
  if (!is_dead(*from->producer())) return;
  const std::string name = from->name;
  erase_if_dead(graph, from->producer());
  fresh->name = name;
}

std::optional<Scalar> uniform_value(const Value& value) {
  const Value* source = &value;
  for (; source->producer() && is_view(*source->producer()); source = source->producer()->input(0))
    if (source->producer()->inputs().size() > 1)
      return std::nullopt;  // GradientGate depends on its other operand, too
  if (source->is_literal()) return source->literal();
  if (!source->producer() || source->producer()->op != "ConstantOfShape") return std::nullopt;
  const Attr* filler = source->producer()->attrs.find("value");
  if (!filler) return std::nullopt;
  if (const auto* size = std::get_if<DimExpr>(filler)) return *size;
  if (const auto* number = std::get_if<double>(filler)) return *number;
  return std::nullopt;
}

std::optional<double> number_of(const Scalar& scalar) {
  if (const double* number = std::get_if<double>(&scalar)) return *number;
  const DimExpr& size = std::get<DimExpr>(scalar);
  if (size.is_constant()) return static_cast<double>(size.value());
  return {};
}

bool is_stored_exactly(const Scalar& scalar, DType dtype) {
  if (compute_dtype(dtype) == dtype) return true;
  const std::optional<double> number = number_of(scalar);
  if (!number) return false;
  if (*number == 0 || std::isinf(*number)) return true;
  // Normal in both 16-bit formats: the 8 significant bits of bfloat16, the exponents of float16.
  int exponent = 0;
  const double mantissa = std::frexp(*number, &exponent);
  return exponent >= -13 && exponent <= 15 && mantissa * 256 == std::trunc(mantissa * 256);
}

bool is_number(const Scalar& scalar, double number) {
  const std::optional<double> value = number_of(scalar);
  return value && *value == number && std::signbit(*value) == std::signbit(number);
}

Node* only_reader(const Value& value, std::string_view op) {
  if (value.uses().size() != 1 || value.is_graph_output()) return nullptr;
  Node* reader = value.uses()[0].node;
  return reader->op == op ? reader : nullptr;
}

bool is_made_for_one_reader(const Value& value) {
  const Node* node = value.producer();
  return node && op_def(node->op).kind == OpKind::Pointwise && value.uses().size() == 1 &&
         !value.is_graph_output();
}

bool is_plain_gemm(const Node& node) {
  return node.op == "Gemm" && !node.attrs.flag("transA") && node.attrs.number("alpha", 1.0) == 1 &&
         node.attrs.number("beta", 1.0) == 1;
}

}  // namespace ortmodule
