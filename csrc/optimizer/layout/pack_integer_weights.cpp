#include "optimizer/layout/pack_integer_weights.h"

#include <algorithm>
#include <unordered_map>

#include "base/integer_conv_weights.h"
#include "base/integer_panels.h"
#include "ops/emit.h"
#include "optimizer/edit.h"
#include "optimizer/weight_values.h"

namespace ortmodule {
namespace {

constexpr int64_t kSmallBytes = 4096;  // may grow to this size

bool is_convolution_of_integers(const Node& node) {
  return node.op == "ConvInteger" || node.op == "ConvIntegerToFloat";
}

bool is_product(const Node& node) {
  return node.op == "MatMulInteger" || node.op == "MatMulIntegerToFloat";
}

// Otherwise packed weights would not replace the original, but stand beside it.
template <class Reader>
bool is_read_only_by(const Value& b, const Reader& is_reader) {
  for (const Use& use : b.uses())
    if (!is_reader(*use.node) || use.node->input(1) != &b || use.node->input(0) == &b) return false;
  for (const Value* view = &b; view->producer() && is_view(*view->producer());) {
    view = view->producer()->input(0);
    if (view->uses().size() != 1 || view->is_graph_output()) return false;
  }
  return !b.is_graph_output();
}

Reason cannot_pack(const WeightValues& weights, const Value& b) {
  if (b.rank() != 2 || !b.dims[0].is_constant() || !b.dims[1].is_constant())
    return "the right factor is not a matrix of fixed sizes";
  if (!weights.contains(&b)) return "the right factor is not constant";
  if (!is_read_only_by(b, is_product)) return "the right factor has other readers";
  const int64_t bytes = b.dims[0].value() * b.dims[1].value();
  if (integer_panel_bytes(b.dims[0].value(), b.dims[1].value()) >
      std::max(bytes + bytes / 20, kSmallBytes))
    return "packed, the right factor takes more memory";
  return {};
}

// Operands in the order of PackedMatMulInteger.
Values packed_operands(const Node& node, Value* panels) {
  const auto in = [&](size_t i) { return i < node.inputs().size() ? node.input(i) : nullptr; };
  if (node.op == "MatMulInteger") return {in(0), panels, nullptr, nullptr, in(2), in(3)};
  return {in(0), panels, in(2), in(3), in(4), in(5), in(6), in(7), in(8)};
}

/// Convolutions that read the same packed weights.
bool packs_alike(const Node& a, const Node& b) {
  return is_convolution_of_integers(a) && a.attrs.dim("group") == b.attrs.dim("group") &&
         a.attrs.integer("channels_last", 0) == b.attrs.integer("channels_last", 0);
}

Reason cannot_pack_windows(const WeightValues& weights, const Node& node) {
  const Value& w = *node.input(1);
  if (node.attrs.has("w_dims")) return "the weights are packed";
  const Dims& dims = w.dims;
  const DimExpr group = node.attrs.dim("group");
  if (!std::all_of(dims.begin(), dims.end(), [](const DimExpr& d) { return d.is_constant(); }) ||
      !group.is_constant() || group.value() <= 0 || dims.size() > 8)
    return "the weights have no fixed sizes";
  if (!weights.contains(&w)) return "the weights are not constant";
  if (dims[1].value() == 1 && dims[0].value() / group.value() <= 3)
    return "each channel makes few outputs";
  if (!is_read_only_by(w, [&](const Node& reader) { return packs_alike(reader, node); }))
    return "the weights have other readers";
  const int64_t places = product({dims.begin() + 2, dims.end()}).value();
  const IntegerConvWeights sizes{dims[0].value(), dims[1].value(), places};
  const bool last = node.attrs.integer("channels_last", 0) != 0;
  const int64_t bytes = last ? sizes.matrix_bytes(group.value()) : sizes.bytes();
  if (bytes > sizes.most_bytes()) return "packed, the weights take more memory";
  return {};
}

/// Weights of convolutions, which stay the same ops.
bool pack_windows(Graph& graph, PassContext& context, const WeightValues& weights) {
  std::unordered_map<const Value*, Value*> packed;
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    if (!is_convolution_of_integers(*node)) continue;
    Value* w = node->input(1);
    Value*& there = packed[w];
    if (Reason reason = there ? Reason() : cannot_pack_windows(weights, *node)) {
      context.reject("PackIntegerConvWeights", *reason, *node, true);
      continue;
    }
    if (!context.take()) break;
    if (!there) {
      Graph::Inserting here(graph, node);
      there = emit(graph, "PackIntegerConvWeights", {w},
                   {{"group", node->attrs.integer("group")},
                    {"channels_last", node->attrs.integer("channels_last", 0)}});
    }
    node->attrs.set("w_dims", w->dims);
    node->attrs.set("w_type", w->dtype);
    graph.set_input(node, 1, there);
    changed = true;
  }
  return changed;
}

}  // namespace

bool pack_integer_weights(Graph& graph, PassContext& context) {
  if (context.device() != Device::Host || context.training()) return false;
  const WeightValues weights(graph);
  std::unordered_map<const Value*, Value*> packed;
  bool changed = pack_windows(graph, context, weights);
  for (Node* node : graph.node_pointers()) {
    if (!is_product(*node)) continue;
    Value* b = node->input(1);
    if (Reason reason = packed.count(b) ? Reason() : cannot_pack(weights, *b)) {
      context.reject("PackedMatMulInteger", *reason, *node, true);
      continue;
    }
    if (!context.take()) break;
    Graph::Inserting here(graph, node);
    graph.current_tag = node->tag;
    Value*& panels = packed[b];
    if (!panels) panels = emit(graph, "PackIntegerMatrix", {b});
    Value* y = emit(graph, "PackedMatMulInteger", packed_operands(*node, panels),
                    {{"columns", b->dims[1].value()},
                     {"unsigned_b", static_cast<int64_t>(b->dtype == DType::UInt8)},
                     {"b_number", node->attrs.number("b_number", 1.0)},
                     {"relu", node->attrs.integer("relu", 0)}});
    graph.current_tag.clear();
    supersede(graph, node->output(), y);
    changed = true;
  }
  return changed;
}

}  // namespace ortmodule
