#include "ir/graph.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace ortmodule {
namespace {

// Bitwise: 0.0 and -0.0 differ, nan equals itself.
bool same_scalar(const Scalar& a, const Scalar& b) {
  const auto* x = std::get_if<double>(&a);
  const auto* y = std::get_if<double>(&b);
  if (x && y) return std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*y);
  return a == b;
}

}  // namespace

Value* Graph::new_value() {
  values_.push_back(std::make_unique<Value>());
  values_.back()->id_ = next_value_id_++;
  return values_.back().get();
}

std::string Graph::unique_name(std::string_view base) {
  std::string name(base.empty() ? std::string_view("v") : base);
  int& count = names_[name];
  if (count++ == 0) return name;
  for (;;) {
    std::string candidate = name + "_" + std::to_string(names_[name]++);
    if (names_.try_emplace(candidate, 1).second) return candidate;
  }
}

void Graph::add_use(Value* value, Use use) {
  if (value) value->uses_.push_back(use);
}

void Graph::remove_use(Value* value, Use use) {
  if (!value) return;
  auto at = std::find(value->uses_.begin(), value->uses_.end(), use);
  ORTM_ASSERT(at != value->uses_.end(), "value ", value->name, " has no such use");
  value->uses_.erase(at);
}

Value* Graph::add_input(std::string_view name, DType dtype, Dims dims, InputKind kind,
                        bool requires_grad, int index) {
  Value* value = new_value();
  value->name = unique_name(name);
  value->dtype = dtype;
  value->dims = std::move(dims);
  value->input_index_ = static_cast<int>(inputs_.size());
  inputs_.push_back({value, kind, requires_grad, index});
  return value;
}

void Graph::add_output(Value* value, OutputKind kind, int index) {
  if (value) ++value->graph_output_count_;
  outputs_.push_back({value, kind, index});
}

Value* Graph::literal(Scalar scalar, DType dtype) {
  for (Value* known : literals_)
    if (known->dtype == dtype && same_scalar(known->literal(), scalar)) return known;
  Value* value = new_value();
  value->name = "literal";  // never printed: the text has the number instead
  value->dtype = dtype;
  value->literal_ = std::move(scalar);
  literals_.push_back(value);
  return value;
}

Node* Graph::add_node(std::string_view op, std::vector<Value*> inputs, size_t output_count,
                      Attrs attrs) {
  auto at = nodes_.end();
  if (before_) at = before_->position_;
  at = nodes_.insert(at, std::make_unique<Node>());
  Node* node = at->get();
  node->position_ = at;
  node->id_ = next_node_id_++;
  node->op = op;
  node->attrs = std::move(attrs);
  node->origin = current_origin;
  node->region = current_region;
  node->tag = current_tag;
  node->inputs_ = std::move(inputs);
  for (size_t i = 0; i < node->inputs_.size(); ++i) add_use(node->inputs_[i], {node, i});
  for (size_t i = 0; i < output_count; ++i) {
    Value* output = new_value();
    output->producer_ = node;
    output->output_index_ = i;
    output->name = unique_name(op);
    node->outputs_.push_back(output);
  }
  return node;
}

void Graph::set_input(Node* node, size_t index, Value* value) {
  if (index >= node->inputs_.size()) node->inputs_.resize(index + 1, nullptr);
  remove_use(node->inputs_[index], {node, index});
  node->inputs_[index] = value;
  add_use(value, {node, index});
}

void Graph::replace_all_uses(Value* from, Value* to) {
  if (from == to) return;
  for (const Use& use : std::exchange(from->uses_, {})) {
    use.node->inputs_[use.index] = to;
    add_use(to, use);
  }
  for (size_t i = 0; i < outputs_.size() && from->is_graph_output(); ++i)
    if (outputs_[i].value == from) replace_output(i, to);
}

void Graph::replace_output(size_t output, Value* value) {
  GraphOutput& slot = outputs_.at(output);
  if (slot.value) --slot.value->graph_output_count_;
  slot.value = value;
  if (value) ++value->graph_output_count_;
}

void Graph::erase_output(size_t output) {
  replace_output(output, nullptr);
  outputs_.erase(outputs_.begin() + static_cast<std::ptrdiff_t>(output));
}

void Graph::erase(Node* node) {
  for (Value* output : node->outputs_)
    ORTM_ASSERT(output->uses_.empty() && !output->is_graph_output(), "node ", node->op,
                " is erased while its output ", output->name, " is used");
  for (size_t i = 0; i < node->inputs_.size(); ++i) remove_use(node->inputs_[i], {node, i});
  for (Value* output : node->outputs_) values_[static_cast<size_t>(output->id_)].reset();
  nodes_.erase(node->position_);
}

void Graph::move_before(Node* node, Node* before) {
  if (node == before) return;
  nodes_.splice(before->position_, nodes_, node->position_);
}

void Graph::rename(Value* value, std::string_view name) {
  if (value->name == name) return;
  names_.erase(value->name);
  value->name = unique_name(name);
}

std::vector<Node*> Graph::node_pointers() const {
  std::vector<Node*> result;
  result.reserve(nodes_.size());
  for (const auto& node : nodes_) result.push_back(node.get());
  return result;
}

std::vector<Value*> Graph::values() const {
  std::vector<Value*> result;
  for (const GraphInput& input : inputs_) result.push_back(input.value);
  result.insert(result.end(), literals_.begin(), literals_.end());
  for (const auto& node : nodes_)
    result.insert(result.end(), node->outputs_.begin(), node->outputs_.end());
  return result;
}

namespace {

void copy_type(const Value& from, Value& to) {
  to.dtype = from.dtype;
  to.dims = from.dims;
}

}  // namespace

std::unique_ptr<Graph> Graph::clone(std::unordered_map<const Value*, Value*>* map) const {
  auto copy = std::make_unique<Graph>();
  std::unordered_map<const Value*, Value*> local;
  auto& to = map ? *map : local;
  copy->name = name;
  for (const GraphInput& input : inputs_)
    to[input.value] = copy->add_input(input.value->name, input.value->dtype, input.value->dims,
                                      input.kind, input.requires_grad, input.index);
  for (Value* literal : literals_) to[literal] = copy->literal(literal->literal(), literal->dtype);
  for (const auto& node : nodes_) {
    std::vector<Value*> operands;
    for (Value* input : node->inputs_) operands.push_back(input ? to.at(input) : nullptr);
    Node* twin = copy->add_node(node->op, std::move(operands), node->outputs_.size(), node->attrs);
    twin->origin = node->origin;
    twin->region = node->region;
    twin->tag = node->tag;
    // First release all automatic names, which could collide with the copied ones.
    for (Value* output : twin->outputs_) copy->names_.erase(output->name);
    for (size_t i = 0; i < node->outputs_.size(); ++i) {
      copy_type(*node->outputs_[i], *twin->outputs_[i]);
      twin->outputs_[i]->name = node->outputs_[i]->name;
      copy->names_.try_emplace(node->outputs_[i]->name, 1);
      to[node->outputs_[i]] = twin->outputs_[i];
    }
  }
  for (const GraphOutput& output : outputs_)
    copy->add_output(output.value ? to.at(output.value) : nullptr, output.kind, output.index);
  return copy;
}

std::vector<Value*> Graph::inline_graph(const Graph& body, const std::vector<Value*>& arguments) {
  ORTM_ASSERT(arguments.size() == body.inputs_.size(), "graph ", body.name, " takes ",
              body.inputs_.size(), " inputs, but found ", arguments.size());
  std::unordered_map<const Value*, Value*> to;
  for (size_t i = 0; i < arguments.size(); ++i) to[body.inputs_[i].value] = arguments[i];
  for (Value* known : body.literals_) to[known] = literal(known->literal(), known->dtype);
  for (const auto& node : body.nodes_) {
    std::vector<Value*> operands;
    for (Value* input : node->inputs_) operands.push_back(input ? to.at(input) : nullptr);
    Node* twin = add_node(node->op, std::move(operands), node->outputs_.size(), node->attrs);
    if (twin->origin.source.empty()) twin->origin = node->origin;
    for (size_t i = 0; i < node->outputs_.size(); ++i) {
      copy_type(*node->outputs_[i], *twin->outputs_[i]);
      to[node->outputs_[i]] = twin->outputs_[i];
    }
  }
  std::vector<Value*> results;
  for (const GraphOutput& output : body.outputs_)
    results.push_back(output.value ? to.at(output.value) : nullptr);
  return results;
}

Graph::Inserting::Inserting(Graph& graph, Node* before)
    : graph_(graph),
      saved_(graph.before_),
      saved_origin_(graph.current_origin),
      saved_region_(graph.current_region) {
  graph.before_ = before;
  if (before) {
    graph.current_origin = before->origin;
    graph.current_region = before->region;
  }
}

Graph::Inserting::~Inserting() {
  graph_.before_ = saved_;
  graph_.current_origin = saved_origin_;
  graph_.current_region = saved_region_;
}

void Graph::collect_symbols(std::vector<std::string>& names) const {
  const auto collect = [&](const Dims& dims) {
    for (const DimExpr& dim : dims) dim.collect_symbols(names);
  };
  for (const Value* value : values()) {
    collect(value->dims);
    if (!value->is_literal()) continue;
    if (const auto* number = std::get_if<DimExpr>(&value->literal()))
      number->collect_symbols(names);
  }
  for (const auto& node : nodes_)
    for (const auto& [name, attr] : node->attrs.entries()) {
      if (const auto* dim = std::get_if<DimExpr>(&attr)) dim->collect_symbols(names);
      if (const auto* dims = std::get_if<Dims>(&attr)) collect(*dims);
      if (const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attr))
        (*body)->collect_symbols(names);
    }
}

}  // namespace ortmodule
