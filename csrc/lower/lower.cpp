#include "lower/lower.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/typed_id.h"
#include "lower/host_copies.h"
#include "lower/lower_ungrouped.h"
#include "lower/step_forms.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

/// The facts of one node without sizes, to select kernels before the sizes are known.
StepFacts symbolic_facts(const Node& node) {
  StepFacts facts;
  NodeFacts& n = facts.nodes.emplace_back();
  n.op = node.op;
  n.attrs = node.attrs;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const Value* input = node.inputs()[i];
    OperandRef& ref = n.inputs.emplace_back();
    n.input_dtypes.push_back(input ? input->dtype : DType::Undefined);
    if (!input) continue;
    ref.kind = input->is_literal() ? OperandRef::Kind::Literal : OperandRef::Kind::Input;
    ref.index = static_cast<int>(facts.inputs.size());
    if (!input->is_literal()) facts.inputs.push_back({input->dtype, {}});
  }
  for (const Value* output : node.outputs()) {
    n.outputs.push_back(static_cast<int>(facts.outputs.size()));
    n.output_dtypes.push_back(output->dtype);
    n.output_sizes.emplace_back();
    facts.outputs.push_back({output->dtype, {}});
  }
  return facts;
}

bool runs_in_group(const Node& node, Device device) {
  if (op_def(node.op).kind != OpKind::Pointwise || node.outputs().size() != 1) return false;
  return select_kernel("PointwiseGroup", device, symbolic_facts(node), nullptr) != nullptr;
}

void replace(Lowered& made, Value* from, Value* to) {
  made.graph->replace_all_uses(from, to);
  made.replaced[from->name] = to->name;
}

/// Replaces fused ops without a kernel by their bodies, until nothing changes: bodies may hold
/// fused ops.
void expand_bodies(Lowered& made) {
  Graph& graph = *made.graph;
  const Device device = made.device;
  for (bool changed = true; changed;) {
    changed = false;
    for (Node* node : graph.node_pointers()) {
      const OpDef& def = op_def(node->op);
      if (!has_body(def) || def.kind == OpKind::View || runs_in_group(*node, device)) continue;
      if (!kernels_of(node->op).empty() &&
          select_kernel(node->op, device, symbolic_facts(*node), nullptr))
        continue;
      const std::unique_ptr<Graph> body = instantiate_body(*node);
      Graph::Inserting here(graph, node);
      Values operands = node->inputs();
      operands.resize(body->inputs().size());  // trailing absent operands are not listed
      const Values results = graph.inline_graph(*body, operands);
      for (size_t i = 0; i < results.size(); ++i)
        if (results[i]) replace(made, node->output(i), results[i]);
      graph.erase(node);
      changed = true;
    }
  }
}

void remove_identities(Lowered& made) {
  Graph& graph = *made.graph;
  for (Node* node : graph.node_pointers()) {
    const bool same =
        node->op == "CustomGradient" || node->op == "Identity" || node->op == "Detach";
    if (!same) continue;
    if (node->attrs.integer("recomputed", 0) != 0)
      made.edges.emplace_back(node->input(1)->name, node->input(0)->name);
    for (size_t i = 0; i < node->outputs().size(); ++i)
      replace(made, node->output(i), node->input(i));
    graph.erase(node);
  }
}

void remove_dead_nodes(Graph& graph) {
  std::vector<Node*> nodes = graph.node_pointers();
  for (size_t i = nodes.size(); i-- > 0;) {
    Node* node = nodes[i];
    const bool used = std::any_of(node->outputs().begin(), node->outputs().end(), [](Value* v) {
      return !v->uses().empty() || v->is_graph_output();
    });
    if (!used && !is_impure(*node)) graph.erase(node);
  }
}

/// A copy of `graph` with recomputation inserted. Backward nodes are first put in the order in
/// which they run, since a recomputed node is placed directly before its first reader.
std::unique_ptr<Graph> clone_with(const Graph& graph, const MemoryDecisions& decisions) {
  std::unordered_map<const Value*, Value*> twin;
  std::unique_ptr<Graph> copy = graph.clone(&twin);
  if (decisions.empty()) return copy;
  sort_backward(*copy);
  std::unordered_map<int, int> id_in_copy;
  for (const auto& [value, copied] : twin) id_in_copy[value->id()] = copied->id();
  MemoryDecisions here;
  for (int id : decisions.recompute) here.recompute.push_back(id_in_copy.at(id));
  for (int id : decisions.keep) here.keep.push_back(id_in_copy.at(id));
  for (int id : decisions.offload) here.offload.push_back(id_in_copy.at(id));
  insert_recomputation(*copy, here);
  return copy;
}

}  // namespace

void sort_backward(Graph& joint) {
  std::vector<Node*> backward;
  for (Node* node : joint.node_pointers())
    if (node->region == Region::Backward) backward.push_back(node);
  if (backward.empty()) return;
  backward = order_backward(backward);
  Node* last = joint.nodes().back().get();
  if (backward.back() != last) {
    joint.move_before(backward.back(), last);
    joint.move_before(last, backward.back());
  }
  for (size_t i = backward.size(); i-- > 1;) joint.move_before(backward[i - 1], backward[i]);
}

Lowered prune_lowered(const Lowered& base, const std::vector<bool>& arrived) {
  Lowered pruned;
  pruned.device = base.device;
  pruned.graph = base.graph->clone();
  prune_absent_gradients(*pruned.graph, arrived);
  std::vector<Node*> backward;
  for (Node* node : pruned.graph->node_pointers())
    if (node->region == Region::Backward) backward.push_back(node);
  const std::vector<Node*> copies = take_host_copies(backward);
  pruned.steps = group_pointwise(order_backward(backward), pruned.device);
  place_host_copies(pruned.steps, copies);
  pruned.forms = find_forms(pruned.steps);
  return pruned;
}

namespace {

using ItemId = Id<struct ItemTag>;

/// Groups pointwise nodes. Items are in program order, each a group or a single node; an item that
/// was merged into another is empty.
class Grouper {
 public:
  Grouper(const std::vector<Node*>& nodes, Device device)
      : host_(device == Device::Host), launches_(device == Device::CUDA) {
    for (Node* node : nodes) {
      const auto id = static_cast<size_t>(node->id());
      if (id >= item_of_.size()) item_of_.resize(id + 1);
      item_of_[id] = items_.add({{node}, runs_in_group(*node, device)});
    }
  }

  std::vector<StepNodes> run(bool join) {
    for (ItemId id : items_.ids())
      if (join && items_[id].pointwise && items_[id].nodes.size() == 1) join_producers(id);
    if (join && launches_) {
      join_early();
      join_returned();
    }
    std::vector<StepNodes> steps;
    for (StepNodes& item : items_)
      if (!item.nodes.empty()) steps.push_back(std::move(item));
    return steps;
  }

 private:
  static constexpr size_t kMostNodes = 24;
  static constexpr size_t kMostOperands = 12;
  static constexpr int64_t kMostSmallElements = 16384;  // of a bias, not of a weight
  // A cast right behind what it reads finds that in the cache. Up to so many elements reading them
  // from memory later takes less than a launch does.
  static constexpr int64_t kMostCastElements = int64_t{1} << 20;
  static constexpr int64_t kMostReturnedElements = kMostOperands * kMostSmallElements;
  static constexpr int64_t kKeptPart = 16;  // of all gradients

  ItemId item_of(const Node* node) const {
    const auto id = static_cast<size_t>(node->id());
    return id < item_of_.size() ? item_of_[id] : ItemId();  // none: of the other region
  }

  ItemId producer_of(const Value* value) const {
    return value && value->producer() ? item_of(value->producer()) : ItemId();
  }

  // Merges the item `at` with the items that produce its operands.
  void join_producers(ItemId at) {
    for (int attempt = 0; attempt < 4; ++attempt) {
      StepNodes& item = items_[at];
      bool joined = false;
      const std::vector<Node*> members = item.nodes;
      for (const Node* node : members) {
        for (const Value* input : node->inputs()) {
          const ItemId from = producer_of(input);
          if (!from || from == at || !can_merge(from, at)) continue;
          at = merge(from, at);
          joined = true;
          break;
        }
        if (joined) break;
      }
      if (!joined) return;
    }
  }

  // Merges steps that could run at the start and are alike: the casts of weights under autocast,
  // the counters of batch norms. Each would be a launch of its own.
  void join_early() {
    std::map<std::string, ItemId> open;
    for (ItemId id : items_.ids()) {
      if (!can_run_early(items_[id])) continue;
      const auto [found, is_new] = open.emplace(kind_of(items_[id]), id);
      if (is_new) continue;
      const ItemId first = found->second;
      if (has_room(first, id))
        move_into(first, id);
      else
        found->second = id;
    }
  }

  // Merges steps that are only returned and are alike into the last of them, which keeps the
  // operands of all until then: under autocast the casts of gradients of biases, and of weights as
  // long as that is little beside all gradients.
  void join_returned() {
    struct Open {
      ItemId last;
      int64_t elements;  // of all its results
    };
    const int64_t most = std::max(kMostReturnedElements, returned_elements() / kKeptPart);
    std::map<std::string, Open> open;
    for (ItemId id : items_.ids()) {
      if (!is_returned(items_[id])) continue;
      const int64_t elements = product(items_[id].nodes[0]->output()->dims).value();
      const auto [found, is_new] = open.emplace(kind_of(items_[id]), Open{id, elements});
      if (is_new) continue;
      Open& kind = found->second;
      const bool joins = has_room(kind.last, id) && kind.elements + elements <= most;
      if (joins) move_into(id, kind.last);
      kind = {id, joins ? kind.elements + elements : elements};
    }
  }

  // Elements of all gradients that pointwise steps return.
  int64_t returned_elements() const {
    int64_t sum = 0;
    for (const StepNodes& item : items_)
      if (item.pointwise)
        for (const Node* node : item.nodes) {
          const DimExpr count = product(node->output()->dims);
          if (node->output()->is_graph_output() && count.is_constant()) sum += count.value();
        }
    return sum;
  }

  static std::string kind_of(const StepNodes& item) {
    const Node& node = *item.nodes[0];
    const Value& result = *node.output();
    return str(node.op, " ", name_of(result.dtype), dims_text(result.dims));
  }

  static bool is_small(const Value& value, int64_t most = kMostSmallElements) {
    const DimExpr count = product(value.dims);
    return count.is_constant() && count.value() <= most;
  }

  bool has_room(ItemId a, ItemId b) const {
    return items_[a].nodes.size() + items_[b].nodes.size() <= kMostNodes &&
           operand_count(a, b) <= kMostOperands;
  }

  // One op in backward with a small result that nothing reads, or a cast of less than its result.
  static bool is_returned(const StepNodes& item) {
    if (!item.pointwise || item.nodes.size() != 1) return false;
    const Node& node = *item.nodes[0];
    const Value& result = *node.output();
    if (node.region != Region::Backward || !result.is_graph_output() || !result.uses().empty())
      return false;
    const bool widens = node.op == "Cast" && size_of(node.input(0)->dtype) < size_of(result.dtype);
    return is_small(result, widens ? kMostCastElements : kMostSmallElements);
  }

  // One op on inputs of the graph, whose result is kept to the end of forward anyway or is small.
  static bool can_run_early(const StepNodes& item) {
    if (!item.pointwise || item.nodes.size() != 1) return false;
    const Node& node = *item.nodes[0];
    for (const Value* input : node.inputs())
      if (input && input->producer()) return false;
    const Value& result = *node.output();
    return node.region == Region::Forward && (is_kept(result) || is_small(result));
  }

  // Whether forward keeps the value, or a view of it, for the caller or for backward.
  static bool is_kept(const Value& value) {
    return value.is_graph_output() ||
           std::any_of(value.uses().begin(), value.uses().end(), [](const Use& use) {
             const bool is_view = op_def(use.node->op).kind == OpKind::View;
             return use.node->region == Region::Backward ||
                    (is_view && is_kept(*use.node->output()));
           });
  }

  bool can_merge(ItemId from, ItemId to) const {
    const StepNodes& a = items_[from];
    const StepNodes& b = items_[to];
    if (!a.pointwise || !b.pointwise) return false;
    if (a.nodes.size() + b.nodes.size() > kMostNodes) return false;
    if (dims_of(a) != dims_of(b) && !(launches_ && is_spread_cast(a, b))) return false;
    if (operand_count(from, to) > kMostOperands) return false;
    if (waits_for_terms(from, to)) return false;
    return sinkable(from, to) || hoistable(from, to);
  }

  // A cast whose result is spread out is never the last node of a group.
  static const Dims& dims_of(const StepNodes& item) { return item.nodes.back()->output()->dims; }

  // Whether `a` converts what `b` alone reads and spreads out, as the bias of a layer under
  // autocast: it is converted for each element then.
  static bool is_spread_cast(const StepNodes& a, const StepNodes& b) {
    if (a.nodes.size() != 1 || a.nodes[0]->op != "Cast") return false;
    const Value& result = *a.nodes[0]->output();
    if (result.uses().empty() || !stays_inside(result, b)) return false;
    const Dims &small = result.dims, &large = dims_of(b);
    if (small.size() > large.size()) return false;
    const size_t missing = large.size() - small.size();
    for (size_t d = 0; d < small.size(); ++d)
      if (small[d] != DimExpr(1) && small[d] != large[missing + d]) return false;
    return true;
  }

  size_t operand_count(ItemId a, ItemId b) const {
    std::vector<const Value*> seen;
    for (ItemId item : {a, b})
      for (const Node* node : items_[item].nodes)
        for (const Value* input : node->inputs()) {
          if (!input || input->is_literal()) continue;
          // Sessions have long chains with many numbers, as scales and zero points are.
          const ItemId from = producer_of(input);
          if (host_ && (from == a || from == b || product(input->dims) == DimExpr(1))) continue;
          if (std::find(seen.begin(), seen.end(), input) == seen.end()) seen.push_back(input);
        }
    return seen.size();
  }

  // Whether the items are parts of a sum that is only returned, and the terms of `to` come later:
  // all terms before them would be kept. So it is with the gradient of a weight that many steps
  // share.
  bool waits_for_terms(ItemId from, ItemId to) const {
    for (ItemId item : {from, to})
      for (const Node* node : items_[item].nodes)
        if (node->op != "Add") return false;
    if (hoistable(from, to)) return false;
    const Value* sum = items_[from].nodes.back()->output();
    while (!sum->is_graph_output() && sum->uses().size() == 1) {
      const Node& reader = *sum->uses()[0].node;
      if (reader.op != "Add" && op_def(reader.op).kind != OpKind::View) return false;
      sum = reader.output();
    }
    return sum->is_graph_output() && sum->uses().empty();
  }

  // Whether `to` can move up to `from`: its other operands are computed before.
  bool hoistable(ItemId from, ItemId to) const {
    for (const Node* node : items_[to].nodes)
      for (const Value* input : node->inputs()) {
        const ItemId at = producer_of(input);
        if (at > from && at != to) return false;
      }
    return true;
  }

  // Whether `from` can move down to `to`: no item between them reads its results.
  bool sinkable(ItemId from, ItemId to) const {
    for (const Node* node : items_[from].nodes)
      for (const Use& use : node->output()->uses()) {
        const ItemId at = item_of(use.node);
        if (at && at != from && at < to) return false;
      }
    return true;
  }

  // Prefer moving the producer down: its results are then allocated as late as possible.
  ItemId merge(ItemId from, ItemId to) {
    if (!sinkable(from, to)) {
      move_into(from, to);
      return from;
    }
    items_[from].nodes.swap(items_[to].nodes);  // the nodes of `from` stay in front
    move_into(to, from);
    return to;
  }

  // Appends the nodes of `from`, which is empty then.
  void move_into(ItemId to, ItemId from) {
    std::vector<Node*>& nodes = items_[to].nodes;
    nodes.insert(nodes.end(), items_[from].nodes.begin(), items_[from].nodes.end());
    items_[from].nodes.clear();
    for (const Node* node : nodes) item_of_[static_cast<size_t>(node->id())] = to;
  }

  IdVector<ItemId, StepNodes> items_;
  bool host_;
  bool launches_;                // a step costs the host a launch
  std::vector<ItemId> item_of_;  // by node id
};

std::vector<StepNodes> steps_of(const std::vector<Node*>& nodes, Device device, bool group) {
  return Grouper(nodes, device).run(group);
}

Lowered lowered(const Graph& graph, Device device, const MemoryDecisions& decisions, bool group) {
  Lowered made;
  made.device = device;
  made.graph = clone_with(graph, decisions);
  remove_identities(made);
  expand_bodies(made);
  remove_dead_nodes(*made.graph);
  std::vector<Node*> forward, backward;
  for (Node* node : made.graph->node_pointers())
    (node->region == Region::Forward ? forward : backward).push_back(node);
  const std::vector<Node*> to_host = take_host_copies(forward);
  const std::vector<Node*> to_device = take_host_copies(backward);
  made.steps = steps_of(forward, device, group);
  place_host_copies(made.steps, to_host);
  made.forward_steps = made.steps.size();
  std::vector<StepNodes> backward_steps = steps_of(order_backward(backward), device, group);
  place_host_copies(backward_steps, to_device);
  for (StepNodes& step : backward_steps) made.steps.push_back(std::move(step));
  made.forms = find_forms(made.steps);
  find_symbols(made);
  return made;
}

}  // namespace

std::vector<StepNodes> group_pointwise(const std::vector<Node*>& nodes, Device device) {
  return steps_of(nodes, device, true);
}

Lowered lower(const Graph& graph, Device device, const MemoryDecisions& decisions) {
  return lowered(graph, device, decisions, true);
}

Lowered lower_ungrouped(const Graph& graph, Device device, const MemoryDecisions& decisions) {
  return lowered(graph, device, decisions, false);
}

}  // namespace ortmodule
