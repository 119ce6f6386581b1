// Scales and offsets behind a convolution or product, one number for all or one for each channel,
// become part of its weights and bias: batch norms whose statistics are known, and the like. Only
// in inference, where the constant part of the model computes the new weights once. A weight with
// other readers is kept as it is, unless it is small: two sets of it would be held.

#include <algorithm>

#include "ops/emit.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "optimizer/cleanup/cleanup.h"
#include "optimizer/edit.h"
#include "optimizer/weight_values.h"

namespace ortmodule {
namespace {

constexpr std::string_view kRule = "fold_into_weights";
constexpr int64_t kSmallElements = 16 << 10;  // of a weight that may be held twice

/// What a pointwise node does to the result of a product: y * factor or y + offset.
struct Affine {
  Value* operand = nullptr;  // a literal, or depends on weights alone
  bool scales = false;
  bool inverts = false;  // divides, or subtracts
};

bool is_convolution(const Node& node) { return node.op == "Conv" || node.op == "ConvTranspose"; }
bool is_product(const Node& node) {
  return is_convolution(node) || node.op == "Gemm" || node.op == "MatMul";
}

class Folder {
 public:
  Folder(Graph& graph, PassContext& context) : graph_(graph), context_(context), weights_(graph) {}

  bool run() {
    std::vector<Node*> products;  // a list of all nodes would hold erased ones
    for (const auto& node : graph_.nodes())
      if (is_product(*node) && !weights_.contains(node->output())) products.push_back(node.get());
    bool changed = false;
    for (Node* node : products) {
      while (Node* folded = fold_reader(*node)) {
        node = folded;
        changed = true;
      }
    }
    return changed;
  }

 private:
  /// Folds the only reader of the product's result; returns the new product, or null.
  Node* fold_reader(Node& node) {
    Value* y = node.output();
    if (y->uses().size() != 1 || y->is_graph_output()) return nullptr;
    Node& reader = *y->uses()[0].node;
    const std::optional<Affine> affine = affine_of(reader, *y);
    if (!affine) return nullptr;
    if (const Reason reason = cannot_fold(node, reader, *affine)) {
      context_.reject(kRule, *reason, node, true);
      return nullptr;
    }
    if (!context_.take()) return nullptr;
    Graph::Inserting here(graph_, &reader);
    graph_.current_tag = node.tag;
    Values operands = node.inputs();
    operands.resize(3);
    Attrs attrs = node.attrs;
    if (affine->scales) {
      operands[1] = scaled_weight(node, *affine);
      if (operands[2]) operands[2] = scaled(operands[2], vector_of(*affine), affine->inverts);
    } else {
      operands[2] = shifted(operands[2], *affine, node);
      if (node.op == "Gemm") attrs.set("beta", 1.0);
    }
    if (node.op == "MatMul") operands.resize(2);
    Node* folded = emit_node(graph_, node.op, operands, attrs);
    graph_.current_tag.clear();
    supersede(graph_, reader.output(), folded->output());
    return folded;
  }

  std::optional<Affine> affine_of(const Node& reader, const Value& y) const {
    Affine affine;
    affine.scales = reader.op == "Mul" || reader.op == "Div";
    affine.inverts = reader.op == "Div" || reader.op == "Sub";
    if (!affine.scales && reader.op != "Add" && reader.op != "Sub") return {};
    const size_t at = reader.input(0) == &y ? 1 : 0;
    affine.operand = reader.input(at);
    if ((affine.inverts && at == 0) || affine.operand == &y) return {};
    const bool known = affine.operand->is_literal()
                           ? number_of(affine.operand->literal()).has_value()
                           : weights_.contains(affine.operand);
    return known ? std::optional(affine) : std::nullopt;
  }

  Reason cannot_fold(const Node& node, const Node& reader, const Affine& affine) const {
    const Value& y = *node.output();
    if (y.dtype != DType::Float32 && y.dtype != DType::Float64)
      return str(name_of(y.dtype), " rounds the weights");
    if (reader.output()->dtype != y.dtype || reader.output()->dims != y.dims)
      return "the result is broadcast";
    if (!weights_.contains(node.input(1))) return "the weights are no constants";
    if (node.attrs.has("packed_outputs")) return "the weights are packed";
    if (!is_per_channel(*affine.operand, y, channel_axis(node)))
      return str(affine.operand->name, " is not one number for each channel");
    if (affine.scales) return cannot_scale(node);
    if (node.op == "MatMul") return "a MatMul has no bias";
    return cannot_shift(node);
  }

  Reason cannot_scale(const Node& node) const {
    const Value& w = *node.input(1);
    if (node.op == "MatMul" && w.rank() != 2) return "the weights are batched";
    if (node.op == "ConvTranspose" && node.attrs.integer("group", 1) != 1)
      return "a transposed convolution in groups mixes channels in its weights";
    const DimExpr count = product(w.dims);
    if (w.uses().size() > 1 && count.value() > kSmallElements)
      return "the weights have other readers";
    if (node.input(2) && !has_vector_bias(node))
      return "the bias is not one number for each channel";
    return {};
  }

  Reason cannot_shift(const Node& node) const {
    if (!node.input(2)) return {};
    if (!has_vector_bias(node)) return "the bias is not one number for each channel";
    if (node.op == "Gemm" && node.attrs.number("beta") != 1.0) return "the bias is scaled";
    return {};
  }

  bool has_vector_bias(const Node& node) const {
    const Value& bias = *node.input(2);
    return !bias.is_literal() && weights_.contains(&bias) &&
           bias.dims == Dims{node.output()->dims[channel_axis(node)]};
  }

  static size_t channel_axis(const Node& node) {
    return is_convolution(node) ? 1 : node.output()->rank() - 1;
  }

  /// Whether all dims but that of the channels are 1.
  static bool is_per_channel(const Value& value, const Value& y, size_t axis) {
    if (value.rank() > y.rank()) return false;
    const size_t leading = y.rank() - value.rank();
    for (size_t d = 0; d < value.rank(); ++d)
      if (value.dims[d] != DimExpr(1) && (d + leading != axis || value.dims[d] != y.dims[axis]))
        return false;
    return true;
  }

  /// The operand as a literal, a vector of the channels, or a vector of one element.
  Value* vector_of(const Affine& affine) {
    Value* operand = affine.operand;
    return operand->is_literal() ? operand : reshaped(operand, {product(operand->dims)});
  }

  Value* reshaped(Value* value, const Dims& dims) {
    return value->dims == dims ? value : added("Reshape", {value}, {{"shape", dims}});
  }

  Value* scaled(Value* value, Value* factor, bool divides) {
    return added(divides ? "Div" : "Mul", {value, factor});
  }

  Value* scaled_weight(const Node& node, const Affine& affine) {
    Value* w = node.input(1);
    Value* factor = vector_of(affine);
    if (factor->is_literal()) return scaled(w, factor, affine.inverts);
    size_t axis = is_convolution(node) ? 0 : 1;
    if (node.op == "ConvTranspose") axis = 1;
    if (node.op == "Gemm" && node.attrs.flag("transB")) axis = 0;
    Dims dims(w->rank(), DimExpr(1));
    dims[axis] = product(factor->dims);
    return scaled(w, reshaped(factor, dims), affine.inverts);
  }

  Value* shifted(Value* bias, const Affine& affine, const Node& node) {
    const Dims channels{node.output()->dims[channel_axis(node)]};
    Value* offset = vector_of(affine);
    if (bias) return added(affine.inverts ? "Sub" : "Add", {bias, offset});
    if (offset->is_literal()) {
      const double number = *number_of(offset->literal()) * (affine.inverts ? -1 : 1);
      return added("ConstantOfShape", {},
                   {{"value", number}, {"shape", channels}, {"dtype", node.output()->dtype}});
    }
    if (affine.inverts) offset = added("Neg", {offset});
    return offset->dims == channels ? offset : added("Expand", {offset}, {{"shape", channels}});
  }

  Value* added(std::string_view op, Values inputs, Attrs attrs = {}) {
    Node* node = emit_node(graph_, op, std::move(inputs), std::move(attrs));
    weights_.visit(*node);
    return node->output();
  }

  Graph& graph_;
  PassContext& context_;
  WeightValues weights_;
};

}  // namespace

bool fold_into_weights(Graph& graph, PassContext& context) {
  if (context.device() != Device::Host || context.training()) return false;
  return Folder(graph, context).run();
}

}  // namespace ortmodule
