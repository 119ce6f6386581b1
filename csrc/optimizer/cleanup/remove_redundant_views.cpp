// A view costs no copy, but hides its source from the other passes; a Reshape may need a copy.

#include <algorithm>
#include <numeric>

#include "ops/emit.h"
#include "optimizer/cleanup/cleanup.h"
#include "optimizer/edit.h"

namespace ortmodule {
namespace {

bool has_type_of(const Value& a, const Value& b) { return a.dtype == b.dtype && a.dims == b.dims; }

std::vector<int64_t> permutation(const Node& node) {
  std::vector<int64_t> perm = node.attrs.integers("perm");
  for (int64_t& axis : perm)
    if (axis < 0) axis += static_cast<int64_t>(perm.size());
  return perm;
}

bool is_identity(const std::vector<int64_t>& perm) {
  std::vector<int64_t> counting(perm.size());
  std::iota(counting.begin(), counting.end(), 0);
  return perm == counting;
}

// Special cases of Reshape: they keep the row-major order of the elements.
bool keeps_order(const Node& node) {
  return node.op == "Reshape" || node.op == "Unsqueeze" || node.op == "Squeeze";
}

// Whether the view is equal to its operand.
bool changes_nothing(const Node& node) {
  if (!is_view(node) || node.outputs().size() != 1 || !node.input(0)) return false;
  // Gradients of gradients stop there, too. Lowering removes it.
  if (node.op == "Detach") return false;
  if (!has_type_of(*node.input(0), *node.output())) return false;
  if (node.op == "Transpose") return is_identity(permutation(node));
  return node.op == "Identity" || node.op == "Expand" || node.op == "Slice" || node.op == "Split" ||
         keeps_order(node);
}

// The op, attributes and operand that replace a chain of two views.
struct Shorter {
  Value* source = nullptr;
  std::string op;
  Attrs attrs;
};

std::optional<Shorter> shorter_transpose(const Node& node, const Node& inner) {
  if (node.op != "Transpose" || inner.op != "Transpose") return {};
  const std::vector<int64_t> first = permutation(inner);
  Dims composed;
  for (int64_t axis : permutation(node)) composed.push_back(first[static_cast<size_t>(axis)]);
  return Shorter{inner.input(0), "Transpose", {{"perm", composed}}};
}

std::optional<Shorter> shorter_reshape(const Node& node, const Node& inner) {
  if (!keeps_order(node) || !keeps_order(inner)) return {};
  Value* source = inner.input(0);
  const bool vanishes = has_type_of(*source, *node.output());
  // A Reshape that copies and has other readers stays: bypassing it would need a second copy.
  const bool is_copy_shared = inner.op == "Reshape" && inner.output()->uses().size() > 1;
  if (!vanishes && (is_copy_shared || (node.op != "Reshape" && inner.op != "Reshape"))) return {};
  return Shorter{source, "Reshape", {{"shape", node.output()->dims}}};
}

std::optional<Shorter> shorter_expand(const Node& node, const Node& inner) {
  if (node.op != "Expand" || inner.op != "Expand") return {};
  return Shorter{inner.input(0), "Expand", {{"shape", node.output()->dims}}};
}

// A single view equal to `node` applied to the view that it reads.
std::optional<Shorter> shorter(const Node& node) {
  if (!is_view(node) || !node.input(0)) return {};
  const Node* inner = node.input(0)->producer();
  if (!inner || !inner->input(0) || inner->tag != node.tag) return {};
  if (auto found = shorter_transpose(node, *inner)) return found;
  if (auto found = shorter_reshape(node, *inner)) return found;
  return shorter_expand(node, *inner);
}

// Replaces `node` by the shorter view; returns the new node.
Node* shorten(Graph& graph, Node* node, const Shorter& by) {
  Graph::Inserting here(graph, node);
  graph.current_tag = node->tag;
  Node* view = emit_node(graph, by.op, {by.source}, by.attrs);
  graph.current_tag.clear();
  supersede(graph, node->output(), view->output());
  return view;
}

}  // namespace

bool remove_redundant_views(Graph& graph, PassContext& context) {
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    while (std::optional<Shorter> by = shorter(*node)) {
      if (!context.take()) return changed;
      node = shorten(graph, node, *by);
      changed = true;
    }
    if (!changes_nothing(*node)) continue;
    if (Reason reason = cannot_replace(*node->output(), *node->input(0), true)) {
      context.reject("same view", *reason, *node, true);
      continue;
    }
    if (!context.take()) return changed;
    changed = replace_value(graph, node->output(), node->input(0), true) || changed;
  }
  return changed;
}

}  // namespace ortmodule
