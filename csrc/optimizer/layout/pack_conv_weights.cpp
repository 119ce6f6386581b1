#include "optimizer/layout/pack_conv_weights.h"

#include <algorithm>
#include <unordered_map>

#include "ops/emit.h"
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
         only_convolutions_read(w, group) && weights.contains(&w);
}

}  // namespace

bool pack_conv_weights(Graph& graph) {
  WeightValues weights(graph);
  std::unordered_map<const Value*, Value*> packed;
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    if (!is_convolution(*node)) continue;
    Value* w = node->input(1);
    Value*& there = packed[w];
    if (!there) {
      if (!can_pack(*node, weights)) continue;
      Graph::Inserting here(graph, node);
      Value* made = emit(graph, "PackConvWeights", {w}, {{"group", node->attrs.integer("group")}});
      weights.visit(*made->producer());
      if (!weights.contains(made)) {  // it would be larger
        graph.erase(made->producer());
        continue;
      }
      there = made;
    }
    const int64_t outputs = w->dims[0].value();
    graph.set_input(node, 1, there);
    node->attrs.set("packed_outputs", outputs);
    changed = true;
  }
  return changed;
}

}  // namespace ortmodule
