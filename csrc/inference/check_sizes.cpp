#include "inference/check_sizes.h"

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "ops/emit.h"
#include "ops/infer_rules.h"

namespace ortmodule {
namespace {

Dims on_numbers(const Dims& dims, const SymbolValues& values) {
  const std::vector<int64_t> sizes = evaluate(dims, values);
  return {sizes.begin(), sizes.end()};
}

// What the check of a node depends on, beside types.
std::vector<std::string> symbols_in_check(const Node& node) {
  std::vector<std::string> names;
  const auto collect = [&](const Dims& dims) {
    for (const DimExpr& dim : dims) dim.collect_symbols(names);
  };
  for (const Value* input : node.inputs()) {
    if (!input) continue;
    collect(input->dims);
    if (!input->is_literal()) continue;
    if (const auto* number = std::get_if<DimExpr>(&input->literal()))
      number->collect_symbols(names);
  }
  for (const Value* output : node.outputs())
    if (output) collect(output->dims);
  for (const auto& [name, attr] : node.attrs.entries()) {
    if (const auto* dim = std::get_if<DimExpr>(&attr)) dim->collect_symbols(names);
    if (const auto* dims = std::get_if<Dims>(&attr)) collect(*dims);
    if (const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attr))
      (*body)->collect_symbols(names);
  }
  return names;
}

bool are_alike(const Value* a, const Value* b) {
  if (!a || !b) return a == b;
  if (a->is_literal() || b->is_literal())
    return a->is_literal() && b->is_literal() && a->dtype == b->dtype &&
           a->literal() == b->literal();
  return a->dtype == b->dtype && a->dims == b->dims;
}

bool have_one_check(const Node& a, const Node& b) {
  const auto alike = [](const Value* x, const Value* y) { return are_alike(x, y); };
  return a.op == b.op && std::ranges::equal(a.inputs(), b.inputs(), alike) &&
         std::ranges::equal(a.outputs(), b.outputs(), alike) && a.attrs == b.attrs;
}

/// Finds nodes of which an earlier one has the same check.
class Repeated {
 public:
  bool operator()(const Node& node) {
    std::string key = node.op;
    for (const Value* output : node.outputs())
      if (output) key += dims_text(output->dims);
    std::vector<const Node*>& earlier = by_sizes_[key];
    const auto same = [&](const Node* other) { return have_one_check(node, *other); };
    if (std::ranges::any_of(earlier, same)) return true;
    earlier.push_back(&node);
    return false;
  }

 private:
  std::unordered_map<std::string, std::vector<const Node*>> by_sizes_;
};

}  // namespace

bool SizeChecks::Checked::passed(const SymbolValues& now) const {
  if (is_repeated) return true;
  if (!passes) return false;
  for (size_t i = 0; i < symbols.size(); ++i)
    if (now.entries()[symbols[i]].second != values[i]) return false;
  return true;
}

void SizeChecks::read(const Graph& graph, const SymbolValues& values) {
  nodes_.clear();
  std::unordered_map<std::string, size_t> places;
  for (const auto& entry : values.entries()) places.emplace(entry.first, places.size());
  Repeated repeated;
  for (const auto& node : graph.nodes()) {
    std::set<size_t> symbols;
    for (const std::string& name : symbols_in_check(*node)) {
      const auto place = places.find(name);
      if (place != places.end()) symbols.insert(place->second);  // else evaluation says so
    }
    nodes_.push_back({{symbols.begin(), symbols.end()}, {}, false, repeated(*node)});
  }
}

void SizeChecks::clear() {
  const std::lock_guard lock(mutex_);
  nodes_ = std::vector<Checked>();  // {} would keep its memory
}

void SizeChecks::check(const Graph& graph, const SymbolValues& values) {
  const std::lock_guard lock(mutex_);
  if (nodes_.size() != graph.nodes().size()) read(graph, values);
  Graph numbers;
  std::unordered_map<const Value*, Value*> known;
  const auto value_of = [&](const Value* value) -> Value* {
    if (!value) return nullptr;
    Value*& made = known[value];
    if (made) return made;
    if (value->is_literal()) return made = numbers.literal(value->literal(), value->dtype);
    return made = numbers.add_input(value->name, value->dtype, on_numbers(value->dims, values));
  };
  auto checked = nodes_.begin();
  for (const auto& node : graph.nodes()) {
    Checked& check = *checked++;
    if (check.passed(values)) continue;
    check.passes = false;
    numbers.current_origin = node->origin;
    Values inputs;
    for (const Value* input : node->inputs()) inputs.push_back(value_of(input));
    const Node* made =
        emit_node(numbers, node->op, inputs, node->attrs.resolve(values), node->outputs().size());
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      const Dims expected = on_numbers(node->output(i)->dims, values);
      ORTM_CHECK(made->output(i)->dims == expected, "[run] ", node->op, " (", node->origin.source,
                 ") must give sizes ", dims_text(expected), ", but found ",
                 dims_text(made->output(i)->dims));
      known[node->output(i)] = made->output(i);
    }
    check.values.clear();
    for (size_t symbol : check.symbols) check.values.push_back(values.entries()[symbol].second);
    check.passes = true;
  }
}

}  // namespace ortmodule
