#include "session/backward_piece.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "gradient/build_gradient.h"
#include "ops/differentiated.h"
#include "ops/emit.h"
#include "ops/spelled_out.h"
#include "session/saved_values.h"

namespace ortmodule {
namespace {

using Twins = std::unordered_map<const Value*, Value*>;

Value* twin_of(const Twins& twins, const Value* value) { return value ? twins.at(value) : nullptr; }

Node* copy_node(Graph& to, const Node& node, Values operands, Twins& twins) {
  // Where the first gradient is zero, the second need not be.
  const bool passes = node.op == "Detach" && node.attrs.integer("stationary", 0) != 0;
  Node* twin = passes
                   ? to.add_node("Identity", std::move(operands), 1, {})
                   : to.add_node(node.op, std::move(operands), node.outputs().size(), node.attrs);
  twin->origin = node.origin;
  // First release the automatic names, which could be those of other results.
  for (Value* output : twin->outputs()) to.rename(output, "copied");
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    Value* output = twin->output(i);
    output->dtype = node.output(i)->dtype;
    output->dims = node.output(i)->dims;
    to.rename(output, node.output(i)->name);
    twins[node.output(i)] = output;
  }
  return twin;
}

/// What a value is the same as, behind identities and detached.
const Value* computed_by(const Value* value) {
  while (value->producer() &&
         (value->producer()->op == "Detach" || value->producer()->op == "Identity"))
    value = value->producer()->input(0);
  return value;
}

/// Adds the parts of a node, with names that no value of the joint graph has.
void add_parts(Graph& to, const Node& node, SpellOut spell, const Values& operands, Twins& twins) {
  const size_t before = to.node_count();
  const Values results = spell(to, node, operands);
  std::vector<Node*> parts = to.node_pointers();
  parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(before));
  for (Node* part : parts) {
    part->origin = node.origin;
    for (Value* output : part->outputs())
      to.rename(output, str(node.output(0)->name, "_part", output->id()));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    to.rename(results[i], node.output(i)->name);
    twins[node.output(i)] = results[i];
  }
}

/// Arguments that forward has changed, by the name of their new value, where the plan does not save
/// the old one: the new one cannot be recomputed, but is still there.
using ChangedArguments = std::map<std::string, size_t>;

ChangedArguments changed_arguments(const Graph& joint, const SavedValues& saved) {
  ChangedArguments changed;
  for (const GraphOutput& output : joint.outputs()) {
    if (output.kind != OutputKind::Mutation || !output.value) continue;
    const auto index = static_cast<size_t>(output.index);
    if (!saved.find(joint.inputs()[index].value->name)) changed[output.value->name] = index;
  }
  return changed;
}

bool is_unchanged_argument(const Plan& plan, const Value* value) {
  if (!value->is_input()) return false;
  const auto index = static_cast<size_t>(value->input_index());
  return std::ranges::find(plan.mutated_arguments, index) == plan.mutated_arguments.end();
}

/// The values of forward that backward can have: arguments that forward has not changed, values
/// that the plan saved or that are the new ones of arguments, and those computed from such without
/// drawing numbers again.
PerValue<bool> obtainable_values(const Graph& joint, const Plan& plan, const SavedValues& saved,
                                 const ChangedArguments& changed) {
  PerValue<bool> obtainable(joint, false);
  for (const GraphInput& input : joint.inputs())
    obtainable[input.value] =
        is_unchanged_argument(plan, input.value) || saved.find(input.value->name);
  for (const auto& node : joint.nodes()) {
    if (node->region != Region::Forward) continue;
    const bool computed = std::ranges::all_of(node->inputs(), [&](const Value* input) {
      return !input || input->is_literal() || obtainable[input];
    });
    for (const Value* output : node->outputs())
      obtainable[output] = (computed && !is_always_kept(*output)) || saved.find(output->name) ||
                           changed.contains(output->name);
  }
  return obtainable;
}

/// The torch operator of which `node` is the traced gradient, if it can run again; else null.
const Node* traced_operator(const Node& node, const PerValue<bool>& obtainable) {
  if (node.op != "CustomGradient" || node.attrs.integer("traced", 0) == 0) return nullptr;
  const Node* found = nullptr;
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    const Node* producer = computed_by(node.input(i))->producer();
    if (!producer || producer->op != "ATen" || (found && producer != found)) return nullptr;
    found = producer;
  }
  if (!found || found->attrs.has("random")) return nullptr;
  // A formula that reads none of the operands, as that of frac, leaves them out of what is saved.
  const bool runs = std::ranges::all_of(found->inputs(), [&](const Value* input) {
    return !input || input->is_literal() || obtainable[input];
  });
  return runs ? found : nullptr;
}

/// Gives a traced gradient up for that of the operator: torch's formula may hold for first
/// gradients only (cumprod of zeros), and torch takes another one where it is differentiated.
void copy_operator_result(Graph& to, const Node& node, Twins& twins) {
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    Value* result = emit(to, "Identity", {twins.at(computed_by(node.input(i)))});
    result->producer()->origin = node.origin;
    to.rename(result, node.output(i)->name);
    twins[node.output(i)] = result;
  }
}

/// The forward nodes of `joint`, with the same names and the same positions of inputs. Its outputs
/// are those values of which `query` has gradients: forward outputs, then hidden ones.
std::unique_ptr<Graph> forward_region(const Graph& joint, const PerValue<bool>& obtainable,
                                      const BackwardQuery& query) {
  auto graph = std::make_unique<Graph>();
  graph->name = joint.name + "_backward";
  Twins twins;
  for (size_t i = 0; i < joint.inputs().size(); ++i) {
    const GraphInput& input = joint.inputs()[i];
    if (input.kind == InputKind::GradOutput) continue;
    const bool wanted = i < query.wanted.size() && query.wanted[i];
    twins[input.value] = graph->add_input(input.value->name, input.value->dtype, input.value->dims,
                                          input.kind, input.requires_grad && wanted, input.index);
  }
  for (const Value* literal : joint.literals())
    twins[literal] = graph->literal(literal->literal(), literal->dtype);
  std::unordered_map<std::string, Value*> by_name;
  for (const auto& node : joint.nodes()) {
    if (node->region != Region::Forward) continue;
    Values operands;
    for (const Value* input : node->inputs()) operands.push_back(twin_of(twins, input));
    if (const SpellOut spell = find_spelled_out(node->op))
      add_parts(*graph, *node, spell, operands, twins);
    else if (traced_operator(*node, obtainable))
      copy_operator_result(*graph, *node, twins);
    else
      copy_node(*graph, *node, std::move(operands), twins);
  }
  for (Value* value : graph->values()) by_name[value->name] = value;
  for (const GraphOutput& output : joint.outputs()) {
    if (output.kind != OutputKind::Output || !output.value) continue;
    const auto index = static_cast<size_t>(output.index);
    if (index < query.arrived.size() && query.arrived[index])
      graph->add_output(twin_of(twins, output.value), OutputKind::Output, output.index);
  }
  for (size_t i = 0; i < query.hidden.size(); ++i)
    graph->add_output(by_name.at(query.hidden[i]), OutputKind::Output,
                      static_cast<int>(query.arrived.size() + i));
  return graph;
}

void remove_unread_backward(Graph& joint) {
  const std::vector<Node*> nodes = joint.node_pointers();
  for (size_t i = nodes.size(); i-- > 0;) {
    if (nodes[i]->region != Region::Backward) continue;
    const bool read = std::ranges::any_of(nodes[i]->outputs(), [](const Value* v) {
      return !v->uses().empty() || v->is_graph_output();
    });
    if (!read) joint.erase(nodes[i]);
  }
}

bool is_forward(const Value* value) {
  return value->producer() && value->producer()->region == Region::Forward;
}

using Clones = std::unordered_map<const Value*, const Value*>;

/// Has `joint` recompute in backward what the plan did not save.
Clones recompute_unsaved(Graph& joint, const SavedValues& saved, const ChangedArguments& changed) {
  // The caller may have let go of an output that backward does not read.
  for (size_t i = 0; i < joint.outputs().size(); ++i)
    if (joint.outputs()[i].kind == OutputKind::Output) joint.replace_output(i, nullptr);
  remove_unread_backward(joint);
  sort_backward(joint);
  PerValue<bool> kept(joint, false);
  for (const Value* value : joint.values())
    if (is_forward(value) && (saved.find(value->name) || changed.contains(value->name)))
      kept[value] = true;
  const PerValue<bool> stashed = stashed_values(joint);
  MemoryDecisions decisions;
  for (const Value* value : joint.values()) {
    if (!is_forward(value)) continue;
    if (kept[value])
      decisions.keep.push_back(value->id());
    else if (stashed[value])
      decisions.recompute.push_back(value->id());
  }
  return insert_recomputation(joint, decisions);
}

/// What lets the gradient of a CustomGradient's result be that of its second operand.
std::shared_ptr<const Graph> passing_body(const Value& value) {
  auto body = std::make_shared<Graph>();
  body->add_output(body->add_input("dy", value.dtype, value.dims, InputKind::GradOutput, false, 0));
  return body;
}

/// Takes the backward nodes out of a joint graph.
class Extractor {
 public:
  Extractor(const Graph& joint, Clones clones, const Graph& forward, const Plan& plan,
            const SavedValues& saved, const ChangedArguments& changed, const BackwardQuery& query)
      : joint_(joint),
        clones_(std::move(clones)),
        plan_(plan),
        saved_(saved),
        changed_(changed),
        query_(query) {
    const Differentiated differentiated(forward);
    for (const auto& node : forward.nodes())
      for (const Value* output : node->outputs())
        if (differentiated.contains(output)) differentiable_.insert(output->name);
    for (const GraphInput& input : forward.inputs())
      if (input.requires_grad) differentiable_.insert(input.value->name);
    for (const GraphOutput& output : forward.outputs())
      outputs_[static_cast<size_t>(output.index)] = output.value->name;
    made_.piece.graph = std::make_unique<Graph>();
    made_.piece.graph->name = joint.name;
  }

  BackwardPiece run() {
    for (const auto& node : joint_.nodes()) {
      if (node->region != Region::Backward) continue;
      Values operands;
      const bool clone = clones_.contains(node->output(0));
      if (clone && node->op == "CustomGradient") {
        for (size_t i = 0; i < node->outputs().size(); ++i)
          recomputed_[node->output(i)] = fenced(node->input(i));
        continue;
      }
      for (size_t i = 0; i < node->inputs().size(); ++i) {
        const Value* input = node->input(i);
        const bool absent = !input || (clone && is_idle(*node, i));
        operands.push_back(absent ? nullptr : clone ? fenced(input) : value_of(input));
      }
      copy_node(graph(), *node, std::move(operands), clone ? recomputed_ : twins_);
    }
    for (const GraphOutput& output : joint_.outputs())
      if (output.kind == OutputKind::Gradient && output.value) add_result(output);
    for (size_t i = 0; i < graph().inputs().size(); ++i)
      made_.piece.arguments.push_back(
          {BoundInput::Kind::Tensor, static_cast<int>(i), std::string()});
    return std::move(made_);
  }

 private:
  Graph& graph() { return *made_.piece.graph; }

  /// Whether no result that is read depends on the operand, as running statistics, which forward
  /// has changed since.
  static bool is_idle(const Node& node, size_t operand) {
    const OpDef& def = op_def(node.op);
    if (!def.depends || operand >= def.inputs.size() || !def.inputs[operand].ends_with('?'))
      return false;
    for (size_t k = 0; k < node.outputs().size(); ++k)
      if (!node.output(k)->uses().empty() && def.depends(k, operand)) return false;
    return true;
  }

  Value* value_of(const Value* value) {
    if (auto known = twins_.find(value); known != twins_.end()) return known->second;
    return twins_[value] = added(value);
  }

  /// A value that recomputation reads. No rewrite sees both sides of a Detach, so that what is
  /// recomputed is rounded as the first time.
  Value* fenced(const Value* value) {
    const auto clone = recomputed_.find(value);
    // Nothing is differentiated through it, so the old content of an argument will do.
    if (clone == recomputed_.end())
      return value->is_input() && !is_unchanged_argument(plan_, value) ? plain(value)
                                                                       : value_of(value);
    Value*& fence = fences_[value];
    if (!fence) fence = emit(graph(), "Detach", {clone->second});
    return fence;
  }

  /// `value` with the gradient edge of `original`. What another piece has recomputed keeps the edge
  /// that it had there: through that piece, its gradients would be added up in another order.
  Value* with_edge(Value* value, const Value* original) {
    const Value* passed = passed_edge(original);
    Value*& edge = edges_[original];
    if (!edge)
      edge = passed ? operand(passed, {BackwardOperand::Kind::Edge,
                                       static_cast<size_t>(passed->input_index()), TensorId(),
                                       passed->name, true})
                    : operand(original, {BackwardOperand::Kind::Recomputed, 0, TensorId(),
                                         original->name, true});
    const Attrs attrs{
        {"outputs", 1}, {"inputs", 1}, {"recomputed", 1}, {"body", passing_body(*edge)}};
    return emit_node(graph(), "CustomGradient", {value, edge}, attrs, 1)->output();
  }

  static const Value* passed_edge(const Value* value) {
    const Node* node = value->producer();
    const bool passes =
        node && node->op == "CustomGradient" && node->attrs.integer("recomputed", 0) != 0;
    return passes && node->input(1)->is_input() ? node->input(1) : nullptr;
  }

  Value* copied_view(const Value* value) {
    const Node& node = *value->producer();
    Values operands;
    for (const Value* input : node.inputs()) operands.push_back(input ? value_of(input) : nullptr);
    copy_node(graph(), node, std::move(operands), twins_);
    return twins_.at(value);
  }

  // Gradients are added up at the same values whatever the plan keeps: at those that backward
  // reads, or at the arguments that they are views of.
  Value* added(const Value* value) {
    if (value->is_literal()) return graph().literal(value->literal(), value->dtype);
    if (value->is_input() && !value->producer()) {
      const GraphInput& input = joint_.inputs()[static_cast<size_t>(value->input_index())];
      if (input.kind == InputKind::GradOutput) return gradient_operand(input);
      return kept_operand(value);
    }
    const bool recomputed = recomputed_.contains(value);
    const bool view = is_view(value) && (recomputed || is_readable(value->producer()->input(0)));
    if (view && root_of(value)->is_input()) return copied_view(value);
    const Value* original = custom_result(recomputed ? clones_.at(value) : value);
    if (query_.training && differentiable_.contains(original->name) && (recomputed || view))
      return with_edge(plain(value), original);
    if (recomputed) return fenced(value);
    return view ? copied_view(value) : kept_operand(original);
  }

  static bool is_view(const Value* value) {
    const Node* node = value->producer();
    return node && op_def(node->op).kind == OpKind::View && node->op != "Detach" && node->input(0);
  }

  static const Value* root_of(const Value* value) {
    while (is_view(value)) value = value->producer()->input(0);
    return value;
  }

  /// The value without a gradient.
  Value* plain(const Value* value) {
    if (recomputed_.contains(value)) return fenced(value);
    if (const auto known = plain_.find(value); known != plain_.end()) return known->second;
    if (is_view(value) && is_readable(value->producer()->input(0))) {
      const Node& node = *value->producer();
      Values operands{plain(node.input(0))};
      for (size_t i = 1; i < node.inputs().size(); ++i)
        operands.push_back(node.input(i) ? value_of(node.input(i)) : nullptr);
      copy_node(graph(), node, std::move(operands), plain_);
      return plain_.at(value);
    }
    BackwardOperand facts = kept(value);
    facts.differentiable = false;
    return plain_[value] = operand(value, std::move(facts));
  }

  /// Where the plan keeps the value.
  BackwardOperand kept(const Value* value) const {
    using enum BackwardOperand::Kind;
    const bool differentiable = differentiable_.contains(value->name);
    const TensorId tensor = saved_.find(value->name);
    if (!tensor && is_unchanged_argument(plan_, value))
      return {Unsaved, static_cast<size_t>(value->input_index()), TensorId(), value->name,
              differentiable};
    if (const auto changed = changed_.find(value->name);
        !tensor && changed != changed_.end() && !differentiable)
      return {Changed, changed->second, TensorId(), joint_.inputs()[changed->second].value->name,
              false};
    if (!tensor) refuse(value);
    const PlannedStorage& storage = plan_.storage_of(tensor);
    const bool is_argument = storage.role == PlannedStorage::Role::Argument;
    const bool is_output = storage.role == PlannedStorage::Role::Output;
    return {is_argument ? Argument
            : is_output ? Output
                        : Saved,
            storage.index, tensor, value->name, differentiable};
  }

  Value* kept_operand(const Value* value) {
    BackwardOperand facts = kept(value);
    using enum BackwardOperand::Kind;
    // The edge of an argument that forward has changed leads to its new value.
    const bool changed = facts.kind != Argument && facts.kind != Unsaved;
    if (value->is_input() && facts.differentiable && changed) refuse(value);
    // Where another value lies in the same memory, as in front of a CustomGradient, the edge of the
    // argument or output is not that of this one.
    const auto output = outputs_.find(facts.index);
    const bool has_edge = facts.kind == Output
                              ? output != outputs_.end() && output->second == value->name
                          : facts.kind == Saved ? !passed_edge(value)
                                                : value->is_input();
    if (query_.training && facts.differentiable && !has_edge) return with_edge(plain(value), value);
    return operand(value, std::move(facts));
  }

  /// The result of a CustomGradient instead of the value that it passes on: the gradient of the op
  /// is that of the CustomGradient.
  static const Value* custom_result(const Value* value) {
    for (const Use& use : value->uses())
      if (use.node->op == "CustomGradient" && use.index < use.node->outputs().size())
        return use.node->output(use.index);
    return value;
  }

  Value* gradient_operand(const GraphInput& input) {
    const auto index = static_cast<size_t>(input.index);
    const bool hidden = index >= query_.arrived.size();
    const bool differentiable = hidden || query_.differentiable.at(index);
    using enum BackwardOperand::Kind;
    return operand(input.value, {hidden ? HiddenGradient : Gradient,
                                 hidden ? index - query_.arrived.size() : index, TensorId(),
                                 input.value->name, differentiable});
  }

  Value* operand(const Value* value, BackwardOperand facts) {
    made_.operands.push_back(std::move(facts));
    return graph().add_input(value->name, value->dtype, value->dims, InputKind::User,
                             query_.training && made_.operands.back().differentiable);
  }

  bool is_readable(const Value* value) const {
    if (twins_.contains(value) || saved_.find(value->name) || changed_.contains(value->name) ||
        is_unchanged_argument(plan_, value))
      return true;
    const Node* node = value->producer();
    return node && op_def(node->op).kind == OpKind::View && node->input(0) &&
           is_readable(node->input(0));
  }

  [[noreturn]] void refuse(const Value* value) const {
    const Origin origin = value->producer() ? value->producer()->origin : Origin{};
    throw Error(
        str("[create_graph] a gradient of a gradient must read saved values only, but found ",
            value->name, " (", origin.module, ", ", origin.source,
            "); set ORTMODULE_BYPASS=1 to run the original module"));
  }

  void add_result(const GraphOutput& output) {
    BackwardResult result{static_cast<size_t>(output.index)};
    Value* value = value_of(output.value);
    if (value->is_input()) {
      result.operand = value->input_index();
    } else {
      result.output = static_cast<int>(made_.piece.output_strides.size());
      graph().add_output(value, OutputKind::Output, result.output);
      made_.piece.output_strides.push_back(row_major_strides(value->dims));
    }
    made_.results.push_back(result);
  }

  static Dims row_major_strides(const Dims& dims) {
    Dims strides(dims.size());
    DimExpr step(1);
    for (size_t d = dims.size(); d-- > 0;) {
      strides[d] = step;
      step = step * dims[d];
    }
    return strides;
  }

  const Graph& joint_;
  const Clones clones_;
  const Plan& plan_;
  const SavedValues& saved_;
  const ChangedArguments& changed_;
  const BackwardQuery& query_;
  std::set<std::string> differentiable_;
  std::map<size_t, std::string> outputs_;  // of forward: their names by index
  Twins twins_;
  Twins recomputed_;  // by clone: what computes it
  Twins fences_;      // by clone: the same behind a Detach
  Twins edges_;       // by value of forward: its edge alone
  Twins plain_;       // by value of forward: it without its gradient
  BackwardPiece made_;
};

}  // namespace

BackwardPiece make_backward_piece(const Graph& joint, const PlanEntry& entry,
                                  const BackwardQuery& query) {
  const Plan& plan = *entry.program.plan;
  const SavedValues saved(plan, *entry.lowered);
  const ChangedArguments changed = changed_arguments(joint, saved);
  const PerValue<bool> obtainable = obtainable_values(joint, plan, saved, changed);
  const std::unique_ptr<Graph> forward = forward_region(joint, obtainable, query);
  const std::unique_ptr<Graph> gradient = build_gradient(*forward);
  Clones clones = recompute_unsaved(*gradient, saved, changed);
  // What depends on an argument whose gradient is not wanted now is differentiated all the same.
  BackwardQuery all = query;
  all.wanted.assign(joint.inputs().size(), true);
  all.arrived.assign(query.arrived.size(), true);
  all.hidden.clear();
  const std::unique_ptr<Graph> whole = forward_region(joint, obtainable, all);
  BackwardPiece made =
      Extractor(*gradient, std::move(clones), *whole, plan, saved, changed, query).run();
  std::vector<std::string> names;
  made.piece.graph->collect_symbols(names);
  for (const Dims& strides : made.piece.output_strides)
    for (const DimExpr& stride : strides) stride.collect_symbols(names);
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const std::string& name : names) {
    const int64_t* value = plan.symbols.find(name);
    ORTM_ASSERT(value, "the plan has no value of ", name);
    made.piece.arguments.push_back({BoundInput::Kind::Symbol, -1, name});
    made.symbols.push_back(*value);
  }
  return made;
}

}  // namespace ortmodule
