#include "inference/constant_part.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "ops/op_def.h"
#include "optimizer/layout/pack_conv_weights.h"
#include "optimizer/weight_values.h"

namespace ortmodule {
namespace {

Values results_of(const Graph& graph) {
  // Packed tables take a little more than those that the passes saw.
  const WeightValues weights(graph, WeightValues::kTableBytes + WeightValues::kTableBytes / 4);
  Values results;
  for (const auto& node : graph.nodes())
    for (Value* output : node->outputs())
      if (weights.is_result(*output)) results.push_back(output);
  return results;
}

// Results that share computation, and the nodes that they need.
struct Component {
  Values results;
  std::vector<const Node*> nodes;  // in the order of the graph
};

// The results of a graph by what they share.
class Components {
 public:
  Components(const Graph& graph, const Values& results) {
    for (const Value* result : results) mark(result->producer());
    for (const auto& node : graph.nodes())
      if (group_.contains(node.get())) of(*node).nodes.push_back(node.get());
    for (Value* result : results) of(*result->producer()).results.push_back(result);
  }

  std::vector<Component> take() { return std::move(found_); }

 private:
  // Puts what the nodes of a result need into one group.
  void mark(const Node* last) {
    const size_t own = parents_.size();
    parents_.push_back(own);
    std::vector<const Node*> pending{last};
    while (!pending.empty()) {
      const Node* node = pending.back();
      pending.pop_back();
      if (!node) continue;
      const auto [known, is_new] = group_.try_emplace(node, own);
      if (!is_new) {
        parents_[root(known->second)] = root(own);
        continue;
      }
      for (const Value* input : node->inputs())
        if (input) pending.push_back(input->producer());
    }
  }

  size_t root(size_t group) const {
    while (parents_[group] != group) group = parents_[group];
    return group;
  }

  Component& of(const Node& node) {
    const auto [place, is_new] = places_.try_emplace(root(group_.at(&node)), found_.size());
    if (is_new) found_.emplace_back();
    return found_[place->second];
  }

  std::unordered_map<const Node*, size_t> group_;
  std::vector<size_t> parents_;  // by group
  std::unordered_map<size_t, size_t> places_;
  std::vector<Component> found_;
};

// Copies nodes into a new part.
class Copy {
 public:
  Copy(ConstantPart& part, std::string name) : part_(part) {
    part.piece.graph = std::make_unique<Graph>();
    part.piece.graph->name = std::move(name);
  }

  /// `input_of`: the graph input of the model that an input of these nodes is.
  template <class InputOf>
  void add(const std::vector<const Node*>& nodes, const Values& results, const InputOf& input_of) {
    for (const Node* node : nodes) copy(*node, input_of);
    for (const Value* result : results) add_output(copied_.at(result));
    copied_.clear();
  }

 private:
  template <class InputOf>
  void copy(const Node& node, const InputOf& input_of) {
    Values inputs;
    for (const Value* input : node.inputs())
      inputs.push_back(input ? value_of(*input, input_of) : nullptr);
    Node* made = part_.piece.graph->add_node(node.op, inputs, node.outputs().size(), node.attrs);
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      made->output(i)->dtype = node.output(i)->dtype;
      made->output(i)->dims = node.output(i)->dims;
      copied_[node.output(i)] = made->output(i);
    }
  }

  template <class InputOf>
  Value* value_of(const Value& value, const InputOf& input_of) {
    Value*& made = copied_[&value];
    if (made) return made;
    if (value.is_literal()) return made = part_.piece.graph->literal(value.literal(), value.dtype);
    Value*& input = inputs_[input_of(value)];
    if (!input) {
      const int index = static_cast<int>(part_.inputs.size());
      part_.inputs.push_back(input_of(value));
      part_.piece.arguments.push_back({BoundInput::Kind::Tensor, index, ""});
      input =
          part_.piece.graph->add_input(value.name, value.dtype, value.dims, InputKind::Constant);
    }
    return made = input;
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
  std::unordered_map<const Value*, Value*> copied_;
  std::unordered_map<size_t, Value*> inputs_;  // by graph input of the model
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

std::vector<ConstantPart> take_constant_parts(ExportedPiece& piece, bool packs) {
  Graph& graph = *piece.graph;
  if (packs) pack_conv_weights(graph);
  std::vector<ConstantPart> parts;
  size_t constants = 0;
  for (const Component& component : Components(graph, results_of(graph)).take()) {
    ConstantPart& part = parts.emplace_back();
    Copy(part, graph.name + "_constants")
        .add(component.nodes, component.results,
             [](const Value& value) { return static_cast<size_t>(value.input_index()); });
    for (Value* result : component.results) {
      const int index = static_cast<int>(graph.inputs().size());
      Value* constant = graph.add_input("constant_" + std::to_string(constants++), result->dtype,
                                        result->dims, InputKind::Constant);
      graph.replace_all_uses(result, constant);
      piece.arguments.push_back({BoundInput::Kind::Tensor, index, ""});
    }
  }
  if (!parts.empty()) erase_unread(graph);
  return parts;
}

ConstantPart joined(const std::vector<const ConstantPart*>& parts) {
  ConstantPart whole;
  Copy copy(whole, parts.front()->piece.graph->name);
  for (const ConstantPart* part : parts) {
    const Graph& graph = *part->piece.graph;
    Values results;
    for (const GraphOutput& output : graph.outputs()) results.push_back(output.value);
    std::vector<const Node*> nodes;
    for (const auto& node : graph.nodes()) nodes.push_back(node.get());
    copy.add(nodes, results, [&](const Value& value) {
      return part->inputs.at(static_cast<size_t>(value.input_index()));
    });
  }
  return whole;
}

}  // namespace ortmodule
