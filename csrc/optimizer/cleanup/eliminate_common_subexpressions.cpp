// Value numbering in program order: nodes with equal op, operands and attributes are equal.

#include <bit>
#include <map>

#include "ops/op_def.h"
#include "optimizer/cleanup/cleanup.h"
#include "optimizer/edit.h"

namespace ortmodule {
namespace {

std::string bits_of(double number) { return std::to_string(std::bit_cast<uint64_t>(number)); }

// An attribute as text; unlike ==, it distinguishes 0.0 and -0.0.
std::string key_of(const Attr& attr) {
  if (const auto* dim = std::get_if<DimExpr>(&attr)) return dim->text();
  if (const auto* dims = std::get_if<Dims>(&attr)) {
    std::string key = "[";
    for (const DimExpr& dim : *dims) key += dim.text() + ",";
    return key;
  }
  if (const auto* number = std::get_if<double>(&attr)) return "#" + bits_of(*number);
  if (const auto* numbers = std::get_if<std::vector<double>>(&attr)) {
    std::string key = "#[";
    for (double number : *numbers) key += bits_of(number) + ",";
    return key;
  }
  if (const auto* text = std::get_if<std::string>(&attr))
    return "'" + std::to_string(text->size()) + *text;
  if (const auto* dtype = std::get_if<DType>(&attr)) return "t" + std::string(name_of(*dtype));
  return str("g", static_cast<const void*>(std::get<std::shared_ptr<const Graph>>(attr).get()));
}

std::string key_of(const Node& node) {
  // With the tag: a node inside a checkpoint must not merge with one outside, which is saved.
  std::string key = node.op + "|" + node.tag + "|" + std::to_string(node.outputs().size());
  for (const Value* input : node.inputs())
    key.append("|").append(std::to_string(input ? input->id() : -1));
  std::map<std::string_view, const Attr*> sorted;
  for (const auto& [name, attr] : node.attrs.entries()) sorted[name] = &attr;
  for (const auto& [name, attr] : sorted)
    key.append("|").append(name).append("=").append(key_of(*attr));
  return key;
}

bool may_merge(const Node& node) {
  const OpDef* op = find_op(node.op);
  return op && !op->random && !is_impure(node) && !node.outputs().empty();
}

// The first of several equal nodes, by region.
struct Known {
  Node* forward = nullptr;
  Node* backward = nullptr;
};

Node* twin_of(const Known& known, const Node& node) {
  if (node.region == Region::Forward) return known.forward;
  if (known.forward && is_view(node)) return known.forward;
  return known.backward;
}

Reason cannot_merge(const Node& node, const Node& twin) {
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    const Value& from = *node.output(i);
    const Value& to = *twin.output(i);
    if (from.dtype != to.dtype || from.dims != to.dims)
      return str("types of ", from.name, " and ", to.name, " differ");
    if (Reason reason = cannot_replace(from, to, is_view(node))) return reason;
  }
  return {};
}

}  // namespace

bool eliminate_common_subexpressions(Graph& graph, PassContext& context) {
  std::unordered_map<std::string, Known> known;
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    if (!may_merge(*node)) continue;
    Known& first = known[key_of(*node)];
    if (Node* twin = twin_of(first, *node)) {
      if (Reason reason = cannot_merge(*node, *twin)) {
        context.reject("merge", *reason, *node, true);
      } else if (context.take()) {
        for (size_t i = 0; i < node->outputs().size(); ++i)
          graph.replace_all_uses(node->output(i), twin->output(i));
        graph.erase(node);
        changed = true;
      }
      continue;
    }
    (node->region == Region::Forward ? first.forward : first.backward) = node;
  }
  return changed;
}

}  // namespace ortmodule
