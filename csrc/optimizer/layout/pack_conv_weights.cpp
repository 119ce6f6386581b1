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

bool is_convolution(const Node& node) {
  return node.op == "Conv" || node.op == "FusedConv" || node.op == "ConvTranspose";
}

/// What the order of a convolution's packed weights depends on.
Attrs packing_attrs(const Node& node) {
  Attrs attrs{{"group", node.attrs.integer("group")}};
  if (node.op == "ConvTranspose")
    for (const char* name : {"strides", "pads", "dilations"})
      attrs.set(name, node.attrs.dims(name));
  return attrs;
}

std::string_view packing_op(const Node& node) {
  return node.op == "ConvTranspose" ? "PackConvTransposeWeights" : "PackConvWeights";
}

/// Whether only convolutions that read the weights in one order do.
bool only_alike_read(const Value& w, const Node& node) {
  const Attrs wanted = packing_attrs(node);
  return !w.is_graph_output() && std::all_of(w.uses().begin(), w.uses().end(), [&](const Use& use) {
    return is_convolution(*use.node) && use.index == 1 &&
           packing_op(*use.node) == packing_op(node) && packing_attrs(*use.node) == wanted;
  });
}

bool has_constant(const Node& node, std::string_view name) {
  const Dims& dims = node.attrs.dims(name);
  return std::all_of(dims.begin(), dims.end(),
                     [](const DimExpr& dim) { return dim.is_constant(); });
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

/// Outputs of a convolution, of all groups; 0 if they or the order of its weights are not known.
int64_t known_outputs(const Node& node) {
  const Dims& w = node.input(1)->dims;
  if (!node.attrs.dim("group").is_constant() || !w[0].is_constant()) return 0;
  const int64_t group = node.attrs.integer("group");
  if (group <= 0 || w[0].value() % group != 0) return 0;
  if (node.op != "ConvTranspose") return w[0].value();
  for (const char* name : {"strides", "pads", "dilations"})
    if (!has_constant(node, name)) return 0;
  return w[1].is_constant() ? w[1].value() * group : 0;
}

bool can_pack(const Node& node, const WeightValues& weights) {
  const Value& w = *node.input(1);
  if (node.attrs.has("packed_outputs")) return false;
  if (w.dtype != DType::Float32 && w.dtype != DType::Float64) return false;
  const int64_t outputs = known_outputs(node);
  if (outputs == 0 || !only_alike_read(w, node)) return false;
  const Value* kept = kept_weights(node, weights);
  if (!weights.contains(kept)) return false;
  if (node.op == "ConvTranspose") return kept == &w;
  const int64_t group = node.attrs.integer("group");
  const bool by_channel = group > 1 && outputs == group && w.dims[1] == DimExpr(1);
  return by_channel || outputs / group > kFewOutputs;
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
      Value* made =
          emit(graph, packing_op(*node), {kept_weights(*node, weights)}, packing_attrs(*node));
      weights.visit(*made->producer());
      if (!weights.contains(made)) {  // it would be larger
        graph.erase(made->producer());
        continue;
      }
      there = made;
    }
    const int64_t outputs = known_outputs(*node);
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
