// A product packs its right factor into panels in every call, which takes a quarter of its time
// where it has a hundred rows. A weight that does not change is packed once: PackWeights becomes
// part of the constants, PackedMatMul reads them and adds the bias of the layer. The packed weight
// takes the place of the original, so it is made only where nothing else reads that one.
#include "optimizer/layout/pack_weights.h"

#include <map>
#include <set>

#include "ops/emit.h"
#include "ops/op_def.h"
#include "optimizer/edit.h"
#include "optimizer/weight_values.h"

namespace ortmodule {
namespace {

constexpr std::string_view kRule = "PackedMatMul";
constexpr int64_t kLeastElements = 1 << 10;  // of a weight
constexpr int64_t kVector = 16;              // columns are rounded up to this, see PackWeights

bool is_product(const Node& node) {
  if (node.op == "WidenedMatMul") return is_floating(node.input(1)->dtype);
  return node.op == "MatMul" || node.op == "FusedMatMul" || node.op == "Gemm";
}

/// The weight [inner, columns] of a product, or its transpose.
struct Weight {
  Value* value = nullptr;
  bool transposed = false;
  int64_t inner = 0, columns = 0;
};

class Packer {
 public:
  Packer(Graph& graph, PassContext& context) : graph_(graph), context_(context), weights_(graph) {}

  bool run() {
    std::vector<Node*> products;
    for (const auto& node : graph_.nodes())
      if (is_product(*node) && !weights_.contains(node->output())) products.push_back(node.get());
    bool changed = false;
    for (Node* node : products) {
      if (!weights_.contains(node->input(1))) continue;
      if (const Reason reason = cannot_pack(*node)) {
        context_.reject(kRule, *reason, *node, true);
        continue;
      }
      if (!context_.take()) break;
      replace(node);
      changed = true;
    }
    return changed;
  }

 private:
  Reason cannot_pack(const Node& node) const {
    if (Reason reason = cannot_read_packed(node)) return reason;
    const Value* root = node.input(1);
    while (root->producer() && is_view(*root->producer())) root = root->producer()->input(0);
    if (!read_by_products_only(*root)) return "the weight has other readers";
    return {};
  }

  Reason cannot_read_packed(const Node& node) const {
    const Value &x = *node.input(0), &w = *node.input(1);
    if (w.rank() != 2 || x.rank() < 2) return "the weight is no matrix";
    if (!is_floating(w.dtype)) return str("there are no panels of ", name_of(w.dtype));
    if (node.attrs.integer("transA", 0) != 0) return "the left factor is transposed";
    const Weight weight = weight_of(node);
    if (weight.inner * weight.columns < kLeastElements) return "the weight is small";
    if (!x.dims.back().is_constant()) return "the left factor has rows of an open size";
    const int64_t padded = (weight.columns + kVector - 1) / kVector * kVector;
    if (20 * padded > 21 * weight.columns) return "whole vectors take much more memory";
    if (node.op == "Gemm" && node.input(2) && !is_vector_bias(node.input(2), weight.columns, node))
      return "the term is not one number for each column";
    return {};
  }

  bool is_vector_bias(const Value* bias, int64_t columns, const Node& gemm) const {
    return !bias->is_literal() && bias->dims == Dims{columns} && gemm.attrs.number("beta") == 1.0;
  }

  /// Else the original weight would be held beside the packed one.
  bool read_by_products_only(const Value& value) const {
    if (value.is_graph_output()) return false;
    for (const Use& use : value.uses()) {
      const Node& reader = *use.node;
      if (is_product(reader) && use.index == 1 && !cannot_read_packed(reader)) continue;
      if (reader.op == "PackWeights") continue;
      if (reader.op != "Transpose" || !read_by_products_only(*reader.output())) return false;
    }
    return true;
  }

  static Weight weight_of(const Node& node) {
    Weight weight{node.input(1), node.attrs.integer("transB", 0) != 0};
    const Dims& dims = weight.value->dims;
    weight.inner = dims[weight.transposed ? 1 : 0].value();
    weight.columns = dims[weight.transposed ? 0 : 1].value();
    return weight;
  }

  void replace(Node* node) {
    const Weight weight = weight_of(*node);
    Value* bias = node->op == "Gemm" ? node->input(2) : nullptr;
    Value* result = node->output();
    Value* packed = nullptr;
    {
      Graph::Inserting here(graph_, node);
      packed = packed_of(weight);
    }
    Node* place = node;
    if (!bias) {
      if (Node* sum = bias_sum_of(*node, weight.columns)) {
        bias = sum->input(0) == result ? sum->input(1) : sum->input(0);
        result = sum->output();
        place = sum;
      }
    }
    Graph::Inserting here(graph_, place);
    graph_.current_tag = node->tag;
    const Node* made =
        emit_node(graph_, kRule, {node->input(0), packed, bias},
                  {{"alpha", node->attrs.number("alpha", 1.0)}, {"columns", weight.columns}});
    graph_.current_tag.clear();
    supersede(graph_, result, made->output());
  }

  /// The node that adds a bias to the result, and is its only reader; or null.
  Node* bias_sum_of(const Node& node, int64_t columns) const {
    const Value& y = *node.output();
    if (y.uses().size() != 1 || y.is_graph_output()) return nullptr;
    Node* sum = y.uses()[0].node;
    if (sum->op != "Add" || sum->output()->dims != y.dims) return nullptr;
    const Value* bias = sum->input(0) == &y ? sum->input(1) : sum->input(0);
    const bool fits = bias != &y && !bias->is_literal() && bias->dtype == y.dtype &&
                      bias->dims == Dims{columns} && weights_.contains(bias);
    return fits ? sum : nullptr;
  }

  Value* packed_of(const Weight& weight) {
    Value*& packed = packed_[{weight.value, weight.transposed}];
    if (packed) return packed;
    Value* w = weight.value;
    if (weight.transposed) w = added("Transpose", w, {{"perm", Dims{1, 0}}});
    return packed = added("PackWeights", w, {});
  }

  Value* added(std::string_view op, Value* value, Attrs attrs) {
    Node* node = emit_node(graph_, op, {value}, std::move(attrs));
    weights_.visit(*node);
    return node->output();
  }

  Graph& graph_;
  PassContext& context_;
  WeightValues weights_;
  std::map<std::pair<const Value*, bool>, Value*> packed_;
};

}  // namespace

bool pack_weights(Graph& graph, PassContext& context) {
  if (context.device() != Device::Host || context.training()) return false;
  return Packer(graph, context).run();
}

}  // namespace ortmodule
