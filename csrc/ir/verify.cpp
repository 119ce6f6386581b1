#include "ir/verify.h"

#include <cstdlib>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "ir/text.h"

namespace ortmodule {
namespace {

// A violated invariant; the message shows the lines around `where`.
struct Violation {
  std::string rule;
  const Node* where = nullptr;
};

using Found = std::optional<Violation>;
using Positions = std::unordered_map<const Node*, int>;

std::string value_label(const Value* value) {
  return str("'", value->is_literal() ? "literal" : value->name, "'");
}

Positions positions_of(const Graph& graph) {
  Positions positions;
  int next = 0;
  for (const auto& node : graph.nodes()) positions[node.get()] = next++;
  return positions;
}

// Every operand is an input or literal of this graph, or the output of an earlier node.
Found check_order(const Graph& graph) {
  std::unordered_set<const Value*> defined;
  for (const GraphInput& input : graph.inputs()) defined.insert(input.value);
  for (const Value* literal : graph.literals()) defined.insert(literal);
  for (const auto& node : graph.nodes()) {
    for (const Value* input : node->inputs())
      if (input && defined.count(input) == 0)
        return Violation{str("an operand must be defined before its use, but ", node->op, " reads ",
                             value_label(input)),
                         node.get()};
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      const Value* output = node->output(i);
      if (output->producer() != node.get() || output->output_index() != i)
        return Violation{
            str("an output must refer to its producer, but ", value_label(output), " does not"),
            node.get()};
      defined.insert(output);
    }
  }
  for (const GraphOutput& output : graph.outputs())
    if (output.value && defined.count(output.value) == 0)
      return Violation{"a graph output must be a value of the graph, but found a dead one",
                       nullptr};
  return std::nullopt;
}

// Use lists contain exactly the uses of a value.
Found check_uses(const Graph& graph) {
  std::map<std::pair<const Node*, size_t>, const Value*> recorded;
  size_t count = 0;
  for (const Value* value : graph.values())
    for (const Use& use : value->uses()) {
      ++count;
      recorded[{use.node, use.index}] = value;
    }
  if (count != recorded.size())
    return Violation{"an operand must be in one use list once, but found it twice", nullptr};
  for (const auto& node : graph.nodes())
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      const Value* input = node->input(i);
      if (!input) continue;
      auto found = recorded.find({node.get(), i});
      if (found == recorded.end() || found->second != input)
        return Violation{str("the use list of ", value_label(input), " must contain operand ", i,
                             " of ", node->op, ", but does not"),
                         node.get()};
      --count;
    }
  if (count != 0)
    return Violation{str("use lists must contain only operands, but found ", count, " more uses"),
                     nullptr};
  return std::nullopt;
}

// Every value has an element type, except unused literals and absent results of ATen nodes. Dims
// need no check: a scalar has none.
Found check_types(const Graph& graph) {
  for (const Value* value : graph.values()) {
    const bool may_lack =
        value->is_literal() || (value->producer() && value->producer()->op == "ATen");
    const bool absent = may_lack && value->uses().empty();
    if (value->dtype == DType::Undefined && !absent)
      return Violation{
          str("a value must have an element type, but ", value_label(value), " has none"),
          value->producer()};
    if (value->is_literal() && !value->dims.empty())
      return Violation{"a literal must be a scalar, but found dims", nullptr};
  }
  return std::nullopt;
}

// Names identify values in the text notation and in .onnx files.
Found check_names(const Graph& graph) {
  std::unordered_set<std::string_view> names;
  for (const Value* value : graph.values())
    if (!value->is_literal() && !names.insert(value->name).second)
      return Violation{
          str("a name must belong to one value, but found ", value_label(value), " twice"),
          value->producer()};
  return std::nullopt;
}

// Forward runs before any gradient exists, so it must not read backward.
Found check_regions(const Graph& graph) {
  auto in_backward = [&](const Value* value) {
    if (value->producer()) return value->producer()->region == Region::Backward;
    return value->is_input() &&
           graph.inputs()[static_cast<size_t>(value->input_index())].kind == InputKind::GradOutput;
  };
  for (const auto& node : graph.nodes()) {
    if (node->region == Region::Backward) continue;
    for (const Value* input : node->inputs())
      if (input && in_backward(input))
        return Violation{
            str("forward must not read backward, but ", node->op, " reads ", value_label(input)),
            node.get()};
  }
  for (const GraphOutput& output : graph.outputs())
    if (output.value && output.kind != OutputKind::Gradient && in_backward(output.value))
      return Violation{str("an output of forward must not come from backward, but ",
                           value_label(output.value), " does"),
                       output.value->producer()};
  return std::nullopt;
}

// Inputs have the right position; mutations and gradients have the type of their input.
Found check_signature(const Graph& graph) {
  const auto& inputs = graph.inputs();
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].value->input_index() != static_cast<int>(i))
      return Violation{str("input ", value_label(inputs[i].value), " must have position ", i,
                           ", but has ", inputs[i].value->input_index()),
                       nullptr};
  for (const GraphOutput& output : graph.outputs()) {
    if (output.kind == OutputKind::Output) continue;
    const bool exists = output.index >= 0 && output.index < static_cast<int>(inputs.size());
    if (!exists)
      return Violation{str("a mutation or gradient must name an input, but found index ",
                           output.index, " with ", inputs.size(), " inputs"),
                       nullptr};
    const Value* input = inputs[static_cast<size_t>(output.index)].value;
    if (output.value && (output.value->dtype != input->dtype || output.value->dims != input->dims))
      return Violation{
          str("a mutation or gradient must have the type of its input ", value_label(input), " ",
              type_text(*input), ", but found ", type_text(*output.value)),
          output.value->producer()};
  }
  return std::nullopt;
}

Reason verify_graph(const Graph& graph, bool body);

Found check_subgraphs(const Graph& graph) {
  for (const auto& node : graph.nodes())
    for (const auto& [name, attr] : node->attrs.entries()) {
      const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attr);
      if (!body || !*body) continue;
      if (Reason reason = verify_graph(**body, true))
        return Violation{str("graph attribute '", name, "' must be valid, but found:\n", *reason),
                         node.get()};
    }
  return std::nullopt;
}

// The lines around a node, it marked with an arrow.
std::string neighbourhood(const Graph& graph, const Node* where) {
  constexpr int kReach = 2;
  const Positions positions = positions_of(graph);
  auto found = positions.find(where);
  if (found == positions.end()) return "";
  std::string text;
  int at = 0;
  for (const auto& node : graph.nodes()) {
    if (std::abs(at - found->second) <= kReach)
      text += str("\n", at == found->second ? "--> " : "    ", print(*node, {.origins = true}));
    ++at;
  }
  return text;
}

// A body as a whole is in one region, so regions inside it are not checked.
Reason verify_graph(const Graph& graph, bool body) {
  for (auto check : {check_order, check_uses, check_types, check_names, check_regions,
                     check_signature, check_subgraphs}) {
    if (body && check == check_regions) continue;
    const Found found = check(graph);
    if (found)
      return str("[graph ", graph.name, "] ", found->rule, neighbourhood(graph, found->where));
  }
  return {};
}

}  // namespace

Reason verify(const Graph& graph) { return verify_graph(graph, false); }

}  // namespace ortmodule
