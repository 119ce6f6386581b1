#include "optimizer/layout/pack_conv_weights.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "ops/emit.h"
#include "optimizer/edit.h"
#include "optimizer/weight_values.h"

namespace ortmodule {
namespace {

/// The kernel reads weights of so few outputs per group as they are.
constexpr int64_t kFewOutputs = 4;

bool is_convolution(const Node& node) { return node.op == "Conv" || node.op == "FusedConv"; }

/// Whether only convolutions with so many groups read the weights.
bool only_convolutions_read(const Value& w, int64_t group) {
  return !w.is_graph_output() && std::all_of(w.uses().begin(), w.uses().end(), [&](const Use& use) {
    return is_convolution(*use.node) && use.index == 1 && use.node->attrs.integer("group") == group;
  });
}

/// The weights of 16 bits that are widened for a convolution, where the wide ones are too large to
/// be kept; else the operand.
Value* kept_weights(const Node& node, const WeightValues& weights) {
  Value* w = node.input(1);
  const Node* cast = w->producer();
  const bool is_widened = cast && cast->op == "Cast" && w->dtype == DType::Float32 &&
                          cast->input(0)->dtype == DType::Float16;
  return is_widened && !weights.contains(w) ? cast->input(0) : w;
}

bool can_pack(const Node& node, const WeightValues& weights) {
  const Value& w = *node.input(1);
  if (node.attrs.has("packed_outputs")) return false;
  if (w.dtype != DType::Float32 && w.dtype != DType::Float64) return false;
  if (!w.dims[0].is_constant() || !node.attrs.dim("group").is_constant()) return false;
  const int64_t group = node.attrs.integer("group");
  const bool by_channel =
      group > 1 && w.dims[0].value() == group && w.dims[1] == DimExpr(1);  // blocks of channels
  return group > 0 && w.dims[0].value() % group == 0 &&
         (by_channel || w.dims[0].value() / group > kFewOutputs) &&
         only_convolutions_read(w, group) && weights.contains(kept_weights(node, weights));
}

}  // namespace

bool pack_conv_weights(Graph& graph) {
  WeightValues weights(graph);
  std::unordered_map<const Value*, Value*> packed;
  std::set<Node*> replaced;
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    if (!is_convolution(*node)) continue;
    Value* w = node->input(1);
    Value*& there = packed[w];
    if (!there) {
      if (!can_pack(*node, weights)) continue;
      Graph::Inserting here(graph, node);
      Value* made = emit(graph, "PackConvWeights", {kept_weights(*node, weights)},
                         {{"group", node->attrs.integer("group")}});
      weights.visit(*made->producer());
      if (!weights.contains(made)) {  // it would be larger
        graph.erase(made->producer());
        continue;
      }
      there = made;
    }
    const int64_t outputs = w->dims[0].value();
    graph.set_input(node, 1, there);
    if (w->producer()) replaced.insert(w->producer());
    node->attrs.set("packed_outputs", outputs);
    changed = true;
  }
  // At last, since pointers of values are remembered.
  for (Node* producer : replaced)
    if (is_dead(*producer)) graph.erase(producer);
  return changed;
}

}  // namespace ortmodule
