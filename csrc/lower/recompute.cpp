#include "lower/recompute.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ops/emit.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

constexpr std::string_view kTag = "recompute";

bool is_alias(const Node& node) {
  return op_def(node.op).kind == OpKind::View || node.op == "Identity" || node.op == "Detach" ||
         node.op == "CustomGradient";
}

}  // namespace

const Value* storage_root(const Value* value) {
  while (const Value* source = alias_of(value)) value = source;
  return value;
}

const Value* alias_of(const Value* value) {
  const Node* node = value->producer();
  if (!node || !is_alias(*node)) return nullptr;
  const bool same_position = node->op == "CustomGradient";
  return node->input(same_position ? value->output_index() : 0);
}

PerValue<bool> stashed_values(const Graph& joint) {
  PerValue<bool> stashed(joint, false);
  auto mark = [&](const Value* value) {
    if (!value || value->is_literal()) return;
    const Value* source = storage_root(value);
    const Node* producer = source->producer();
    if (producer && producer->region == Region::Forward) stashed[source] = true;
  };
  for (const auto& node : joint.nodes())
    if (node->region == Region::Backward)
      for (const Value* input : node->inputs()) mark(input);
  for (const GraphOutput& output : joint.outputs())
    if (output.kind == OutputKind::Gradient) mark(output.value);
  return stashed;
}

PerValue<bool> returned_values(const Graph& joint) {
  PerValue<bool> returned(joint, false);
  for (const GraphOutput& output : joint.outputs())
    if (output.kind == OutputKind::Output && output.value)
      returned[storage_root(output.value)] = true;
  return returned;
}

MemoryDecisions with_values_of_parameters(const Graph& joint, MemoryDecisions decisions) {
  PerValue<bool> known(joint, false);
  for (const GraphInput& input : joint.inputs())
    known[input.value] = input.kind == InputKind::Parameter;
  const PerValue<bool> stashed = stashed_values(joint);
  const PerValue<bool> returned = returned_values(joint);
  std::unordered_set<int> found;
  for (const auto& node : joint.nodes()) {
    if (node->region == Region::Backward || is_impure(*node)) continue;
    bool some = false;
    const bool all = std::ranges::all_of(node->inputs(), [&](const Value* input) {
      if (!input || input->is_literal()) return true;
      some |= known[input];
      return bool(known[input]);
    });
    if (!all || !some) continue;
    for (const Value* output : node->outputs()) {
      known[output] = true;
      if (storage_root(output) == output && stashed[output] && !returned[output])
        found.insert(output->id());
    }
  }
  for (int id : decisions.recompute) found.erase(id);
  for (int id : decisions.offload) found.erase(id);
  std::vector<int> added(found.begin(), found.end());
  std::ranges::sort(added);
  decisions.recompute.insert(decisions.recompute.end(), added.begin(), added.end());
  std::erase_if(decisions.keep, [&](int id) { return found.contains(id); });
  return decisions;
}

bool is_recomputation(const Node& node) { return node.tag == kTag; }

namespace {

class Recomputer {
 public:
  Recomputer(Graph& joint, const MemoryDecisions& decisions)
      : graph_(joint), saved_(stashed_values(joint)), returned_(returned_values(joint)) {
    for (int id : decisions.keep) saved_.at(id) = true;
    for (int id : decisions.recompute) saved_.at(id) = false;
    offloaded_.insert(decisions.offload.begin(), decisions.offload.end());
  }

  std::unordered_map<const Value*, const Value*> run() {
    split_partly_kept_nodes();
    std::vector<Node*> backward;
    for (Node* node : graph_.node_pointers())
      if (node->region == Region::Backward) backward.push_back(node);
    if (!backward.empty()) copy_to_host(backward.front());
    for (Node* node : backward) {
      before_ = node;
      for (size_t i = 0; i < node->inputs().size(); ++i) {
        Value* input = node->input(i);
        if (!input) continue;
        Value* read = in_backward(input);
        if (read != input) graph_.set_input(node, i, read);
      }
    }
    return std::move(originals_);
  }

 private:
  bool is_kept(const Value* value) const {
    const Value* source = storage_root(value);
    if (!source->producer() || source->producer()->region == Region::Backward) return true;
    if (is_offloaded(*source)) return false;
    if (returned_.contains(source) && returned_[source]) return true;
    // A view that the plan copies may be there without what it views.
    for (const Value* alias = value; alias; alias = alias_of(alias))
      if (saved_.contains(alias) && saved_[alias]) return true;
    return is_always_kept(*source);
  }

  bool is_offloaded(const Value& value) const { return offloaded_.contains(value.id()); }

  /// Whether backward has the value without computing it.
  bool is_available(const Value* value) const {
    return is_kept(value) || is_offloaded(*storage_root(value));
  }

  // A fused node of which only some results are kept is expanded to its body, so that a missing
  // result can be recomputed from a kept one: a norm from its residual sum.
  void split_partly_kept_nodes() {
    const std::vector<Node*> nodes = graph_.node_pointers();
    for (size_t n = 0; n < nodes.size(); ++n) {
      Node* node = nodes[n];
      if (node->region != Region::Forward || node->outputs().size() < 2) continue;
      const OpDef& def = op_def(node->op);
      const bool has_way = !def.recompute.empty();
      if (!has_way && (!has_body(def) || def.indivisible || is_alias(*node))) continue;
      const auto& outputs = node->outputs();
      const bool all = std::all_of(outputs.begin(), outputs.end(),
                                   [&](const Value* value) { return is_available(value); });
      const bool none = std::none_of(outputs.begin(), outputs.end(),
                                     [&](const Value* value) { return is_available(value); });
      if (all || none) continue;
      // After the node, since the body's nodes read its kept results.
      Graph::Inserting here(graph_, n + 1 < nodes.size() ? nodes[n + 1] : nullptr);
      graph_.current_region = Region::Forward;
      const Values results = has_way ? emit_recompute(graph_, *node) : emit_body(*node);
      for (size_t i = 0; i < results.size() && i < outputs.size(); ++i) {
        if (!results[i]) continue;
        if (is_available(outputs[i])) {
          graph_.replace_all_uses(results[i], outputs[i]);
        } else {
          same_as_[outputs[i]] = results[i];
        }
      }
    }
  }

  Values emit_body(const Node& node) {
    const std::unique_ptr<Graph> body = instantiate_body(node);
    Values operands = node.inputs();
    operands.resize(body->inputs().size());
    return graph_.inline_graph(*body, operands);
  }

  /// The value that a backward node reads in place of forward value `value`: itself or a clone.
  Value* in_backward(Value* value) {
    if (value->is_literal() || is_kept(value)) return value;
    if (is_offloaded(*value)) return fetched(value);
    if (auto same = same_as_.find(value); same != same_as_.end()) {
      Value* clone = cloned(same->second);
      originals_[clone] = value;
      return clone;
    }
    return cloned(value);
  }

  /// Copies all values to offload in front of `first_backward`, so that the nodes of forward stay
  /// together; nobody reads those that backward does not need.
  void copy_to_host(Node* first_backward) {
    for (Node* node : graph_.node_pointers())
      for (Value* value : node->outputs()) {
        if (!is_offloaded(*value)) continue;
        Value* copy = copied("CopyToHost", value, Region::Forward, first_backward);
        graph_.rename(copy, value->name + "_on_host");
        on_host_[value] = copy;
      }
  }

  /// The copy of an offloaded value that comes back from the host.
  Value* fetched(Value* value) {
    Value*& known = clone_[value];
    if (known) return known;
    known = copied("CopyToDevice", on_host_.at(value), Region::Backward, before_);
    graph_.rename(known, value->name + "_fetched");
    originals_[known] = value;
    return known;
  }

  Value* copied(const char* op, Value* value, Region region, Node* before) {
    Graph::Inserting here(graph_, before);
    Node* copy = graph_.add_node(op, {value}, 1, {});
    copy->region = region;
    copy->origin = storage_root(value)->producer()->origin;
    copy->output()->dtype = value->dtype;
    copy->output()->dims = value->dims;
    return copy->output();
  }

  Value* cloned(Value* value) {
    if (auto known = clone_.find(value); known != clone_.end()) return known->second;
    Node* node = value->producer();
    Values operands;
    for (Value* input : node->inputs()) operands.push_back(input ? in_backward(input) : nullptr);
    Graph::Inserting here(graph_, before_);
    Node* twin = graph_.add_node(node->op, operands, node->outputs().size(), node->attrs);
    twin->region = Region::Backward;
    twin->origin = node->origin;
    twin->tag = kTag;
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      Value* output = twin->output(i);
      output->dtype = node->output(i)->dtype;
      output->dims = node->output(i)->dims;
      graph_.rename(output, node->output(i)->name + "_recompute");
      clone_[node->output(i)] = output;
      originals_[output] = node->output(i);
    }
    return clone_.at(value);
  }

  Graph& graph_;
  std::unordered_map<const Value*, const Value*> originals_;  // clone -> forward value
  PerValue<bool> saved_;                                      // by forward for backward
  PerValue<bool> returned_;                                   // as an output
  std::unordered_set<int> offloaded_;                         // ids
  Node* before_ = nullptr;
  std::unordered_map<const Value*, Value*> on_host_;  // offloaded value -> its copy
  std::unordered_map<const Value*, Value*> clone_;
  std::unordered_map<const Value*, Value*>
      same_as_;  // result of an expanded node -> that of its body
};

}  // namespace

std::unordered_map<const Value*, const Value*> insert_recomputation(
    Graph& joint, const MemoryDecisions& decisions) {
  return Recomputer(joint, decisions).run();
}

}  // namespace ortmodule
