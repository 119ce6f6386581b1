#include "inference/constant_part.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ops/op_def.h"
#include "optimizer/layout/pack_conv_weights.h"
#include "optimizer/weight_values.h"

namespace ortmodule {
namespace {

/// Whether the rest of the model reads a value that is computed from weights.
bool is_result(const WeightValues& weights, const Value& value) {
  if (!weights.is_computed(&value)) return false;
  if (value.is_graph_output()) return true;
  return std::any_of(value.uses().begin(), value.uses().end(), [&](const Use& use) {
    const std::vector<Value*>& outputs = use.node->outputs();
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](const Value* output) { return !weights.contains(output); });
  });
}

Values results_of(const Graph& graph) {
  const WeightValues weights(graph);
  Values results;
  for (const auto& node : graph.nodes())
    for (Value* output : node->outputs())
      if (is_result(weights, *output)) results.push_back(output);
  return results;
}

// Copies the nodes that `results` need into a graph of their own.
class Copy {
 public:
  Copy(const Graph& graph, const Values& results, ConstantPart& part) : part_(part) {
    part.piece.graph = std::make_unique<Graph>();
    part.piece.graph->name = graph.name + "_constants";
    mark(results);
    for (const auto& node : graph.nodes())
      if (needed_.count(node.get())) copy(*node);
    for (const Value* result : results) add_output(copied_.at(result));
  }

 private:
  void mark(const Values& results) {
    std::vector<Node*> pending;
    for (const Value* result : results) pending.push_back(result->producer());
    while (!pending.empty()) {
      Node* node = pending.back();
      pending.pop_back();
      if (!node || !needed_.insert(node).second) continue;
      for (const Value* input : node->inputs())
        if (input) pending.push_back(input->producer());
    }
  }

  void copy(const Node& node) {
    Values inputs;
    for (const Value* input : node.inputs()) inputs.push_back(input ? value_of(*input) : nullptr);
    Node* made = part_.piece.graph->add_node(node.op, inputs, node.outputs().size(), node.attrs);
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      made->output(i)->dtype = node.output(i)->dtype;
      made->output(i)->dims = node.output(i)->dims;
      copied_[node.output(i)] = made->output(i);
    }
  }

  Value* value_of(const Value& value) {
    Value*& made = copied_[&value];
    if (made) return made;
    if (value.is_literal()) return made = part_.piece.graph->literal(value.literal(), value.dtype);
    part_.inputs.push_back(static_cast<size_t>(value.input_index()));
    return made = part_.piece.graph->add_input(value.name, value.dtype, value.dims,
                                               InputKind::Constant);
  }

  void add_output(Value* value) {
    const int index = static_cast<int>(part_.piece.output_strides.size());
    part_.piece.graph->add_output(value, OutputKind::Output, index);
    part_.piece.output_strides.push_back(row_major(value->dims));
  }

  static Dims row_major(const Dims& dims) {
    Dims strides(dims.size());
    DimExpr stride = 1;
    for (size_t axis = dims.size(); axis-- > 0; stride = stride * dims[axis])
      strides[axis] = stride;
    return strides;
  }

  ConstantPart& part_;
  std::unordered_set<const Node*> needed_;
  std::unordered_map<const Value*, Value*> copied_;
};

void erase_unread(Graph& graph) {
  std::vector<Node*> nodes = graph.node_pointers();
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    const std::vector<Value*>& outputs = (*node)->outputs();
    const bool read = std::any_of(outputs.begin(), outputs.end(), [](const Value* output) {
      return !output->uses().empty() || output->is_graph_output();
    });
    if (!read && !is_impure(**node)) graph.erase(*node);
  }
}

}  // namespace

std::optional<ConstantPart> take_constant_part(ExportedPiece& piece, bool packs) {
  Graph& graph = *piece.graph;
  if (packs) pack_conv_weights(graph);
  const Values results = results_of(graph);
  if (results.empty()) return std::nullopt;
  ConstantPart part;
  Copy(graph, results, part);
  for (size_t i = 0; i < part.piece.graph->inputs().size(); ++i)
    part.piece.arguments.push_back({BoundInput::Kind::Tensor, static_cast<int>(i), ""});
  for (size_t i = 0; i < results.size(); ++i) {
    Value* constant = graph.add_input("constant_" + std::to_string(i), results[i]->dtype,
                                      results[i]->dims, InputKind::Constant);
    graph.replace_all_uses(results[i], constant);
    const int index = static_cast<int>(graph.inputs().size()) - 1;
    piece.arguments.push_back({BoundInput::Kind::Tensor, index, ""});
  }
  erase_unread(graph);
  return part;
}

}  // namespace ortmodule
