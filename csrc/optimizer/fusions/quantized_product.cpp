// Products of numbers that a model dequantizes before (QDQ, as quantize_static writes them): both
// factors are read as integers, and the exact sums are scaled. ConvInteger's scales and bias become
// its own, too (quantize_dynamic, QLinearConv); those of MatMulInteger are rules in
// fusions/integer_product.cpp. The ops are in ops/matmul_integer.cpp and ops/conv_integer.cpp.

#include <limits>

#include "ops/emit.h"
#include "ops/infer_rules.h"
#include "optimizer/dequantized.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr std::string_view kRule = "QuantizedProduct";

Value* operand(const Node& node, size_t i) { return node.input(i); }

// --- QDQ -----------------------------------------------------------------------------------------
struct Factors {
  Dequantized x, w;
};

// The most that an element may be away from its zero point.
int64_t most_steps(const Dequantized& factor) {
  return factor.zero || factor.q->dtype == DType::UInt8 ? 255 : 128;
}

// Why the factors cannot be integers. The scale and zero point of w may have one for each index of
// `axis`, if it has one; a sum has `terms` products.
Reason cannot_be_integers(const Factors& factors, int64_t axis, const DimExpr& terms) {
  const auto& [x, w] = factors;
  if (!is_byte(x.q->dtype) || !is_byte(w.q->dtype)) return "a factor is no integer of 8 bits";
  if (!x.scale || !w.scale) return "a scale is a literal";
  if (channel_axis(x.scale->dims, x.q->dims) != -1 ||
      (x.zero && channel_axis(x.zero_dims, x.q->dims) != -1))
    return "the scale of the activation is not one number";
  for (const Dims& dims : {w.scale->dims, w.zero ? w.zero_dims : Dims{}}) {
    const std::optional<int64_t> found = channel_axis(dims, w.q->dims);
    if (!found || (*found != -1 && *found != axis))
      return "the scale of the weight is not one number per channel";
  }
  constexpr int64_t kMostSum = std::numeric_limits<int32_t>::max();
  if (terms.is_constant() && terms.value() > kMostSum / (most_steps(x) * most_steps(w)))
    return "their sums may be beyond 32 bits";
  return {};
}

std::optional<Factors> read_factors(const Node& node) {
  const std::optional<Dequantized> x = read_dequantized(operand(node, 0)),
                                   w = read_dequantized(operand(node, 1));
  if (!x || !w) return std::nullopt;
  return Factors{*x, *w};
}

Value* emit_matmul(Graph& graph, const Node& node, const Factors& f) {
  Value* w = f.w.q;
  if (node.attrs.integer("transB", 0) != 0)
    w = emit(graph, "Transpose", {w}, {{"perm", Dims{1, 0}}});
  Value* bias = node.op == "Gemm" ? operand(node, 2) : nullptr;
  const bool inside = bias && !bias->is_literal() && bias->dims == Dims{w->dims.back()};
  Value* y =
      emit(graph, "MatMulIntegerToFloat",
           {f.x.q, w, as_channels(graph, f.x.scale), as_channels(graph, f.w.scale),
            as_channels(graph, f.x.zero), as_channels(graph, f.w.zero), inside ? bias : nullptr});
  return bias && !inside ? emit(graph, "Add", {y, bias}) : y;
}

Value* emit_conv(Graph& graph, const Node& node, const Factors& f) {
  return emit(graph, "ConvIntegerToFloat",
              {f.x.q, f.w.q, as_channels(graph, f.x.scale), as_channels(graph, f.w.scale),
               as_channels(graph, f.x.zero), as_channels(graph, f.w.zero), operand(node, 2)},
              node.attrs);
}

// Matrices of a batch are packed in each run, which takes longer than so few rows save.
bool is_few_rows(const Dims& x, const Dims& w) {
  constexpr int64_t kFewRows = 8;
  const DimExpr& rows = x[x.size() - 2];
  return w.size() > 2 && rows.is_constant() && rows.value() < kFewRows;
}

bool fuse_factors(Graph& graph, Node* node, PassContext& context) {
  const bool conv = node->op == "Conv" && !node->attrs.has("packed_outputs");
  if (!conv && node->op != "MatMul" && !is_plain_gemm(*node)) return false;
  const std::optional<Factors> factors = read_factors(*node);
  if (!factors) return false;
  const Dims &x = factors->x.q->dims, &w = factors->w.q->dims;
  if (!conv && (x.size() < 2 || w.size() < 2 || is_few_rows(x, w))) return false;
  const bool by_rows = conv || node->attrs.integer("transB", 0) != 0;
  if (!conv && by_rows && w.size() != 2) return false;
  const int64_t axis = by_rows ? 0 : w.size() == 2 ? 1 : -1;  // of matrices in a batch: none
  const DimExpr terms = conv      ? product({w.begin() + 1, w.end()})
                        : by_rows ? w.back()
                                  : w[w.size() - 2];
  if (Reason reason = cannot_be_integers(*factors, axis, terms)) {
    context.reject(kRule, *reason, *node, true);
    return false;
  }
  if (!context.take()) return false;
  Graph::Inserting here(graph, node);
  graph.current_tag = node->tag;
  Value* y = conv ? emit_conv(graph, *node, *factors) : emit_matmul(graph, *node, *factors);
  graph.current_tag.clear();
  supersede(graph, node->output(), y);
  return true;
}

// --- ConvInteger ---------------------------------------------------------------------------------
Value* other_input(const Node& node, const Value& value) {
  return node.input(0) == &value ? node.input(1) : node.input(0);
}

// A tensor with one number, or with one for each channel of `y`.
bool is_per_channel(const Value& value, const Value& y, DType dtype) {
  if (value.is_literal() || value.dtype != dtype) return false;
  const std::optional<int64_t> axis = channel_axis(value.dims, y.dims);
  return axis && (*axis == -1 || *axis == 1);
}

// What follows a ConvInteger: + bias (integers), as floats, times x_scale * w_scale, + bias.
struct ConvEnd {
  Value *bias = nullptr, *x_scale = nullptr, *w_scale = nullptr, *result = nullptr;
};

// Takes the sum with a bias of every channel, and returns what is known then.
Value* take_bias(Value* y, ConvEnd& end) {
  const Node* add = end.bias ? nullptr : only_reader(*y, "Add");
  if (!add || add->output()->dims != y->dims) return y;
  Value* bias = other_input(*add, *y);
  const bool channels =
      bias != y && is_per_channel(*bias, *y, y->dtype) && channel_axis(bias->dims, y->dims) == 1;
  if (!channels) return y;
  end.bias = bias;
  return add->output();
}

std::optional<ConvEnd> read_end(const Node& conv) {
  ConvEnd end;
  Value* y = take_bias(conv.output(), end);
  const Node* cast = only_reader(*y, "Cast");
  if (!cast || cast->output()->dtype != DType::Float32) return std::nullopt;
  const Node* scaled = only_reader(*cast->output(), "Mul");
  if (!scaled || scaled->output()->dims != y->dims) return std::nullopt;
  const Value* factor = other_input(*scaled, *cast->output());
  const Node* scales = factor->producer();
  if (!scales || scales->op != "Mul") return std::nullopt;
  for (size_t i = 0; i < 2 && !end.x_scale; ++i) {
    Value *x = scales->input(i), *w = scales->input(1 - i);
    if (!is_per_channel(*x, *y, DType::Float32) || !is_per_channel(*w, *y, DType::Float32))
      return std::nullopt;
    if (product(x->dims) != DimExpr(1)) continue;
    end.x_scale = x;
    end.w_scale = w;
  }
  if (!end.x_scale) return std::nullopt;
  end.result = take_bias(scaled->output(), end);
  return end;
}

bool fuse_scales(Graph& graph, Node* node, PassContext& context) {
  if (node->op != "ConvInteger") return false;
  const std::optional<ConvEnd> end = read_end(*node);
  if (!end || !context.take()) return false;
  Graph::Inserting here(graph, end->result->producer());
  graph.current_tag = node->tag;
  Value* y = emit(graph, "ConvIntegerToFloat",
                  {node->input(0), node->input(1), as_channels(graph, end->x_scale),
                   as_channels(graph, end->w_scale), operand(*node, 2), operand(*node, 3),
                   as_channels(graph, end->bias)},
                  node->attrs);
  graph.current_tag.clear();
  supersede(graph, end->result, y);
  return true;
}

bool fuse_quantized_product(Graph& graph, PassContext& context) {
  if (context.training() || context.device() != Device::Host) return false;
  bool changed = false;
  for (Node* node : graph.node_pointers()) changed = fuse_factors(graph, node, context) || changed;
  std::vector<Node*> convolutions;
  for (const auto& node : graph.nodes())
    if (node->op == "ConvInteger") convolutions.push_back(node.get());
  for (Node* node : convolutions) changed = fuse_scales(graph, node, context) || changed;
  return changed;
}

}  // namespace

REGISTER_FUSION(fuse_quantized_product, fuse_quantized_product);

}  // namespace ortmodule
