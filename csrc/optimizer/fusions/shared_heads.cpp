// Neighbouring heads of queries that share a head of keys and values (Ainslie et al., "GQA", 2023):
// a model repeats keys and values, each head in its place, and attention reads them as they were.
// Then nothing repeated is made, nor kept for backward.
#include <optional>

#include "ops/emit.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

/// An operand [.., heads, S, E] of attention whose heads are repeated.
struct RepeatedHeads {
  Value* heads = nullptr;  // what is repeated: its axes, and one of size 1
  size_t axis = 0;         // of that size
  int64_t times = 1;
  std::vector<Dims> perms;  // of the transposes behind the repetition, the last one first
};

/// Whether `from` is `to` with the axis `axis + 1` of size `times` merged into `axis`.
bool merges(const Dims& from, const Dims& to, size_t axis, int64_t times) {
  if (from.size() != to.size() + 1) return false;
  Dims merged = from;
  merged[axis] = merged[axis] * DimExpr(times);
  merged.erase(merged.begin() + static_cast<std::ptrdiff_t>(axis) + 1);
  return merged == to;
}

std::optional<RepeatedHeads> repeated_heads(const Value* operand) {
  RepeatedHeads found;
  size_t axis = operand->rank() - 3;
  const Node* node = operand->producer();
  for (; node && node->op == "Transpose"; node = node->input(0)->producer()) {
    found.perms.push_back(std::get<Dims>(*node->attrs.find("perm")));
    axis = static_cast<size_t>(node->attrs.integers("perm")[axis]);
  }
  if (!node || node->op != "Reshape") return {};
  const Node* expand = node->input(0)->producer();
  if (!expand || expand->op != "Expand") return {};
  const Dims &wide = expand->output()->dims, &narrow = expand->input(0)->dims;
  found.axis = axis + 1;
  if (found.axis >= wide.size() || !wide[found.axis].is_constant()) return {};
  found.times = wide[found.axis].value();
  Dims repeated = narrow;
  if (narrow.size() != wide.size() || narrow[found.axis] != DimExpr(1)) return {};
  repeated[found.axis] = wide[found.axis];
  if (repeated != wide || !merges(wide, node->output()->dims, axis, found.times)) return {};
  found.heads = expand->input(0);
  return found;
}

/// The operand before its heads were repeated, added at the insertion point.
Value* before_repetition(Graph& graph, const RepeatedHeads& found) {
  Dims dims = found.heads->dims;
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(found.axis));
  const Node* view = found.heads->producer();
  const bool undoes =
      view && (view->op == "Reshape" || view->op == "Unsqueeze") && view->input(0)->dims == dims;
  Value* x = undoes ? view->input(0) : emit(graph, "Reshape", {found.heads}, {{"shape", dims}});
  for (auto perm = found.perms.rbegin(); perm != found.perms.rend(); ++perm)
    x = emit(graph, "Transpose", {x}, {{"perm", *perm}});
  return x;
}

bool fuse_shared_heads(Graph& graph, PassContext& context) {
  std::vector<Node*> found;
  for (const auto& node : graph.nodes())
    if (node->op == "ScaledDotProductAttention") found.push_back(node.get());
  bool changed = false;
  for (Node* node : found) {
    const auto k = repeated_heads(node->input(1)), v = repeated_heads(node->input(2));
    if (!k && !v) continue;
    if (!k || !v || k->times != v->times) {
      context.reject("ScaledDotProductAttention", "keys and values are repeated differently", *node,
                     true);
      continue;
    }
    const Dims &q = node->input(0)->dims, &repeated = node->input(1)->dims;
    if (!q[q.size() - 3].is_constant() || q[q.size() - 3] != repeated[q.size() - 3]) {
      context.reject("ScaledDotProductAttention", "the number of heads is not known", *node, true);
      continue;
    }
    if (!context.take()) break;
    const Graph::Inserting here(graph, node);
    for (size_t i : {1, 2}) {
      Node* repetition = node->input(i)->producer();
      graph.set_input(node, i, before_repetition(graph, i == 1 ? *k : *v));
      erase_if_dead(graph, repetition);
    }
    changed = true;
  }
  return changed;
}

}  // namespace

REGISTER_FUSION(fuse_shared_heads, fuse_shared_heads);

}  // namespace ortmodule
