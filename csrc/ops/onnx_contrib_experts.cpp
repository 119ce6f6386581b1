// Import of com.microsoft's mixtures of experts: MoE, and QMoE with weights of a few bits. Each
// token goes through the k experts that its router prefers; ExpertMatMul reads their weights only.
#include <array>
#include <utility>

#include "base/error.h"
#include "ops/onnx_few_bits.h"
#include "ops/onnx_nested.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

/// Where a layer of the experts has its operands, and how its weights are stored.
struct ExpertLayer {
  size_t weights = 0, bias = 0, scales = 0, zeros = 0;
  int64_t bits = 32, block = 0;  // 0: one block for each column
  bool rounds_x = false;
};

struct Experts {
  Value* ids = nullptr;      // [tokens, k]
  Value* weights = nullptr;  // likewise
  int64_t count = 0;
};

// The experts of each token, and the weights of their results. MoE's are shares of all experts,
// unless they are normalized, QMoE's shares of those that were chosen.
Experts chosen_experts(OnnxCall& c, const DimExpr& tokens, bool of_chosen, size_t router_weights) {
  Value* scores = c.cast(c.in(1), DType::Float32);
  if (scores->rank() != 2) c.refuse("router_probs must have two dimensions");
  scores = c.reshape(scores, {tokens, scores->dims[1]});
  const int64_t count = c.sizes().fix(scores->dims[1]), k = c.integer("k", 4);
  if (k < 1 || k > count) c.refuse(str("k must be from 1 to ", count, ", but found ", k));
  const Values top =
      c.emit_all("TopK", {scores},
                 {{"k", DimExpr(k)}, {"axis", 1}, {"largest", 1}, {"sorted", 1}, {"stable", 1}});
  const auto of_all = [&](Value* value) {
    return c.emit("GatherElements", {value, top[1]}, {{"axis", 1}});
  };
  const bool normalizes = c.flag("normalize_routing_weights");
  Value* weights = nullptr;
  if (router_weights > 0 && c.has(router_weights)) {
    weights = of_all(c.cast(c.in(router_weights), DType::Float32));
    if (normalizes)
      weights = c.pointwise("Div", {weights, c.reduce("ReduceSum", weights, {1}, true)});
  } else if (of_chosen || normalizes) {
    weights = c.emit("Softmax", {top[0]}, {{"axis", 1}});
  } else {
    weights = of_all(c.emit("Softmax", {scores}, {{"axis", 1}}));
  }
  return {top[1], weights, count};
}

// One number of packed bytes to a byte: of columns that are one block there is one each.
Value* zeros_of_columns(OnnxCall& c, const ExpertLayer& layer, int64_t experts, int64_t columns) {
  if (layer.bits == 8) return c.reshape(c.in(layer.zeros), {experts, columns, 1});
  Value* packed = c.in(layer.zeros);
  if (packed->rank() != 2) c.refuse("zero points must be [experts, bytes]");
  Value* all = unpacked_bits(c, packed, layer.bits);
  all = c.reshape(all, {experts, packed->dims[1] * DimExpr(8 / layer.bits)});
  return c.reshape(c.slice(all, 1, 0, columns), {experts, columns, 1});
}

// x W^T + bias: [tokens, k, columns]
Value* expert_layer(OnnxCall& c, Value* x, const Experts& experts, const ExpertLayer& layer) {
  Value* w = c.in(layer.weights);
  if (w->rank() != 3 || c.sizes().fix(w->dims[0]) != experts.count)
    c.refuse(str("operand ", layer.weights, " must be [", experts.count, ", rows, columns]"));
  const int64_t columns = c.sizes().fix(w->dims[1]), inner = c.sizes().fix(x->dims.back());
  const int64_t block = layer.block > 0 ? layer.block : inner;
  Attrs attrs{{"K", inner}, {"N", columns}, {"bits", layer.bits}, {"block_size", block}};
  attrs.set("rounds_x", layer.rounds_x ? 1 : 0);
  Value *scales = nullptr, *zeros = nullptr;
  if (layer.bits == 32) {
    w = c.cast(w, DType::Float32);
  } else {
    scales = c.cast(c.in(layer.scales), DType::Float32);
    if (c.has(layer.zeros))
      zeros =
          layer.block > 0 ? c.in(layer.zeros) : zeros_of_columns(c, layer, experts.count, columns);
  }
  Value* y = c.emit("ExpertMatMul", {x, experts.ids, w, scales, zeros}, std::move(attrs));
  if (!c.has(layer.bias)) return y;
  Value* bias = c.cast(c.in(layer.bias), DType::Float32);
  return c.emit("Add", {y, c.emit("Gather", {bias, experts.ids}, {{"axis", 0}})});
}

// Every second element of the last dimension, or its halves.
std::pair<Value*, Value*> gate_and_rest(OnnxCall& c, Value* h, bool interleaved) {
  const int64_t size = c.sizes().fix(h->dims.back()) / 2;
  if (!interleaved)
    return {c.slice(h, 2, 0, DimExpr(size)), c.slice(h, 2, DimExpr(size), DimExpr(2 * size))};
  const Dims dims{h->dims[0], h->dims[1], size};
  Value* pairs = c.reshape(h, {h->dims[0], h->dims[1], size, 2});
  return {c.reshape(c.slice(pairs, 3, 0, 1), dims), c.reshape(c.slice(pairs, 3, 1, 2), dims)};
}

// gate * sigmoid(alpha * gate) * (rest + beta)
Value* swiglu(OnnxCall& c, Value* gate, Value* rest) {
  if (c.has_attr("swiglu_limit")) {
    const double limit = c.number("swiglu_limit", 0);
    gate = c.emit("Min", {gate, number(c, limit, gate)});
    rest = c.emit("Clip", {rest}, {{"min", -limit}, {"max", limit}});
  }
  const double alpha = c.number("activation_alpha", 1), beta = c.number("activation_beta", 0);
  Value* scaled = alpha == 1 ? gate : c.emit("Mul", {gate, number(c, alpha, gate)});
  Value* open = c.emit("Mul", {gate, c.emit("Sigmoid", {scaled})});
  return c.emit("Mul", {open, beta == 0 ? rest : c.emit("Add", {rest, number(c, beta, rest)})});
}

// What the second layer reads of `h` and, where there is a third one, `rest`.
Value* activated_experts(OnnxCall& c, Value* h, Value* rest) {
  const std::string name =
      c.word("activation_type", {"relu", "gelu", "silu", "swiglu", "identity"});
  if (name == "swiglu") {
    const int64_t fused = c.integer("swiglu_fusion", 0);
    if (fused == 0 && !rest) c.refuse("swiglu without fusion must have a third layer");
    if (fused == 0) return swiglu(c, h, rest);
    const auto [gate, up] = gate_and_rest(c, h, fused == 1);
    return swiglu(c, gate, up);
  }
  if (name == "gelu") h = c.emit("Gelu", {h}, {{"approximate", "tanh"}});
  if (name == "silu") h = c.emit("Silu", {h});
  if (name == "relu") h = c.emit("Relu", {h});
  return rest ? c.emit("Mul", {h, rest}) : h;
}

Values mixed(OnnxCall& c, const std::array<ExpertLayer, 3>& layers, bool of_chosen,
             size_t router_weights) {
  if (c.flag("swiglu_limit_after_activation"))
    c.unsupported("swiglu_limit_after_activation must be 0");
  Value* x = c.cast(c.in(0), DType::Float32);
  if (x->rank() != 2 && x->rank() != 3) c.refuse("input must have two or three dimensions");
  const Dims dims = x->dims;
  const DimExpr tokens = product({dims.begin(), dims.end() - 1});
  x = c.reshape(x, {tokens, dims.back()});
  const Experts experts = chosen_experts(c, tokens, of_chosen, router_weights);
  Value* h = expert_layer(c, x, experts, layers[0]);
  Value* rest = c.has(layers[2].weights) ? expert_layer(c, x, experts, layers[2]) : nullptr;
  Value* y = expert_layer(c, activated_experts(c, h, rest), experts, layers[1]);
  Value* shares = c.reshape(experts.weights, {tokens, experts.weights->dims[1], 1});
  y = c.reduce("ReduceSum", c.pointwise("Mul", {y, shares}), {1}, false);
  return {c.cast(c.reshape(y, dims), c.dtype(0))};
}

// input, router_probs, fc1 weights, bias?, fc2 weights, bias?, fc3 weights?, bias?
Values import_moe(OnnxCall& c) {
  return mixed(c, {ExpertLayer{2, 3}, ExpertLayer{4, 5}, ExpertLayer{6, 7}}, false, 0);
}

// input, router_probs, weights, scales, bias? of three layers, zero points? of them,
// router_weights?
Values import_q_moe(OnnxCall& c) {
  if (c.string("quant_type", "int") != "int") c.unsupported("quant_type must be int");
  const int64_t bits = c.integer("expert_weight_bits", 4), block = c.integer("block_size", 0);
  std::array<ExpertLayer, 3> layers;
  constexpr std::array kBits = {"fc1_expert_weight_bits", "fc2_expert_weight_bits",
                                "fc3_expert_weight_bits"};
  for (size_t i = 0; i < layers.size(); ++i) {
    ExpertLayer& layer = layers[i];
    layer.weights = 2 + 3 * i;
    layer.scales = layer.weights + 1;
    layer.bias = layer.weights + 2;
    layer.zeros = 11 + i;
    layer.bits = c.integer(kBits[i], bits);
    layer.block = std::max<int64_t>(block, 0);
    if (layer.bits != 2 && layer.bits != 4 && layer.bits != 8)
      c.unsupported(str("weights must have 2, 4 or 8 bits, but found ", layer.bits));
    // As onnxruntime does it for blocks of 8 bits at every level.
    layer.rounds_x =
        block > 0 && (layer.bits == 8 || (layer.bits == 4 && c.integer("accuracy_level", 0) == 4));
  }
  return mixed(c, layers, true, 14);
}

REGISTER_ONNX({{"MoE", 1, import_moe, nullptr, "com.microsoft"},
               {"QMoE", 1, import_q_moe, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
