#include "ops/emit.h"

#include "base/error.h"
#include "ir/text.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

bool is_variadic(const OpDef& def) {
  return !def.outputs.empty() && def.outputs.back().ends_with('*');
}

void fill_defaults(const OpDef& def, Attrs& attrs) {
  for (const auto& [name, value] : def.attrs.entries())
    if (!attrs.has(name)) attrs.set(name, value);
}

// Gives literals of a text without types the type of the node's other operands.
void type_literals(Graph& graph, Node& node) {
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    Value* value = node.input(i);
    if (!value || !value->is_literal() || value->dtype != DType::Undefined) continue;
    const DType dtype = default_literal_dtype(node.inputs());
    graph.set_input(&node, i, graph.literal(value->literal(), dtype));
  }
}

void infer_from_body(Node& node) {
  const std::unique_ptr<Graph> body = instantiate_body(node);
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    const Value* from = body->outputs().at(i).value;
    node.output(i)->dtype = from->dtype;
    node.output(i)->dims = from->dims;
  }
}

// Replaces attributes `@name` of a body's node by the fused node's attribute of that name.
void substitute_attrs(Node& inner, const Node& fused) {
  const auto entries = inner.attrs.entries();
  for (const auto& [name, value] : entries) {
    const auto* text = std::get_if<std::string>(&value);
    if (!text || !text->starts_with('@')) continue;
    const Attr* actual = fused.attrs.find(std::string_view(*text).substr(1));
    if (actual)
      inner.attrs.set(name, *actual);
    else
      inner.attrs.erase(name);  // optional and absent in the fused node
  }
  fill_defaults(op_def(inner.op), inner.attrs);
}

// Replaces `x + absent` and `x * absent` by x, for absent optional operands of the op.
void drop_absent(Graph& body, Node* inner) {
  if (inner->op != "Add" && inner->op != "Mul") return;
  Value* a = inner->input(0);
  Value* b = inner->input(1);
  if (a && b) return;
  body.replace_all_uses(inner->output(), a ? a : b);
  body.erase(inner);
}

}  // namespace

Node* emit_node(Graph& graph, std::string_view op, Values inputs, Attrs attrs, size_t outputs) {
  const OpDef& def = op_def(op);
  if (!is_variadic(def)) outputs = def.outputs.size();
  ORTM_ASSERT(outputs > 0, "op ", op, " needs the number of its outputs");
  fill_defaults(def, attrs);
  while (!inputs.empty() && !inputs.back()) inputs.pop_back();  // trailing absent operands
  Node* node = graph.add_node(op, std::move(inputs), outputs, std::move(attrs));
  try {
    infer(*node);
  } catch (...) {
    graph.erase(node);
    throw;
  }
  return node;
}

Value* emit(Graph& graph, std::string_view op, Values inputs, Attrs attrs) {
  return emit_node(graph, op, std::move(inputs), std::move(attrs))->output();
}

void infer(Node& node) {
  const OpDef& def = op_def(node.op);
  if (def.infer) {
    InferContext context(node);
    def.infer(context);
  } else if (has_body(def)) {
    infer_from_body(node);
  }
}

void infer(Graph& graph) {
  for (Node* node : graph.node_pointers()) {
    fill_defaults(op_def(node->op), node->attrs);
    type_literals(graph, *node);
    infer(*node);
  }
}

Value* emit_cast(Graph& graph, Value* value, DType dtype) {
  if (value->dtype == dtype) return value;
  if (value->is_literal()) return graph.literal(value->literal(), dtype);
  return emit(graph, "Cast", {value}, {{"to", dtype}});
}

std::unique_ptr<Graph> instantiate_body(const Node& node) {
  const OpDef& def = op_def(node.op);
  ORTM_ASSERT(has_body(def), "op ", node.op, " has no body");
  std::unique_ptr<Graph> body =
      def.body_of ? parse_graph(def.body_of(node)) : parse_graph(def.body);
  const size_t count = body->inputs().size();
  ORTM_ASSERT(count == def.inputs.size(), "the body of ", node.op, " takes other operands");
  for (size_t i = 0; i < count; ++i) {
    Value* inside = body->inputs()[i].value;
    if (const Value* outside = node.input(i)) {
      inside->dtype = outside->dtype;
      inside->dims = outside->dims;
    } else {
      body->replace_all_uses(inside, nullptr);
    }
  }
  for (Node* inner : body->node_pointers()) {
    substitute_attrs(*inner, node);
    drop_absent(*body, inner);
  }
  infer(*body);
  return body;
}

namespace {

/// The position of `name` among names of operands or outputs ("bias?"), or their number.
size_t position_of(std::string_view name, const std::vector<std::string_view>& names) {
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name ||
        (names[i].ends_with('?') && names[i].substr(0, names[i].size() - 1) == name))
      return i;
  return names.size();
}

}  // namespace

Values emit_recompute(Graph& graph, const Node& node) {
  const OpDef& def = op_def(node.op);
  const std::unique_ptr<Graph> body = parse_graph(def.recompute);
  Values arguments;
  for (const GraphInput& input : body->inputs()) {
    const size_t operand = position_of(input.value->name, def.inputs);
    Value* outside = operand < def.inputs.size()
                         ? node.input(operand)
                         : node.output(position_of(input.value->name, def.outputs));
    arguments.push_back(outside);
    if (outside) {
      input.value->dtype = outside->dtype;
      input.value->dims = outside->dims;
    } else {
      body->replace_all_uses(input.value, nullptr);
    }
  }
  for (Node* inner : body->node_pointers()) substitute_attrs(*inner, node);
  infer(*body);
  const Values results = graph.inline_graph(*body, arguments);
  Values found(node.outputs().size());
  for (size_t i = 0; i < results.size(); ++i)
    found.at(position_of(body->outputs()[i].value->name, def.outputs)) = results[i];
  return found;
}

}  // namespace ortmodule
