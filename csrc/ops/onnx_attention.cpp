// Import of attention.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/onnx_heads.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

using onnx_heads::join_heads, onnx_heads::kInfinity, onnx_heads::range;

// [B, L, heads * E] as [B, heads, L, E]; rank 4 has this layout already.
Value* split_heads(OnnxCall& c, Value* x, int64_t heads) {
  if (x->rank() == 4) return x;
  if (heads <= 0) c.refuse("q_num_heads and kv_num_heads must be given for operands of rank 3");
  return onnx_heads::split_heads(c, x, heads);
}

// Each head `times` times, in place: [h0, h0, h1, h1]
Value* repeated_heads(OnnxCall& c, Value* x, int64_t times) {
  if (times == 1) return x;
  const Dims d = x->dims;
  Value* wide = c.emit("Expand", {c.reshape(x, {d.at(0), d.at(1), 1, d.at(2), d.at(3)})},
                       {{"shape", Dims{d.at(0), d.at(1), times, d.at(2), d.at(3)}}});
  return c.reshape(wide, {d.at(0), d.at(1) * DimExpr(times), d.at(2), d.at(3)});
}

Value* add(OnnxCall& c, Value* a, Value* b) { return a ? c.pointwise("Add", {a, b}) : b; }

// 0 where `allowed`, -infinity elsewhere
Value* bias_of(OnnxCall& c, Value* allowed, DType dtype) {
  return c.emit("Where", {allowed, c.literal(0, dtype), c.literal(-kInfinity, dtype)});
}

struct Attention {
  Value *q = nullptr, *k = nullptr, *v = nullptr;
  Value *present_k = nullptr, *present_v = nullptr;
  DimExpr before;         // keys before the queries
  Value* ends = nullptr;  // [B]: keys in use, where the cache is outside
};

// The mask as a bias, shorter ones padded by keys that nobody sees.
Value* given_mask(OnnxCall& c, const Attention& a) {
  Value* mask = c.in(3);
  const DimExpr keys = a.k->dims.at(2), given = mask->dims.at(mask->dims.size() - 1);
  mask = mask->dtype == DType::Bool ? bias_of(c, mask, a.q->dtype) : c.cast(mask, a.q->dtype);
  if (c.sizes().equal(given, keys)) return mask;
  Dims pads(2 * mask->rank(), DimExpr(0));
  pads.back() = keys - given;
  return c.emit("Pad", {mask}, {{"pads", pads}, {"value", -kInfinity}});
}

// Where keys lie relative to the queries: causal, and within a window.
Value* positions_bias(OnnxCall& c, const Attention& a) {
  const bool causal = c.flag("is_causal");
  const int64_t left = c.integer("left_window_size", -1),
                right = c.integer("right_window_size", -1);
  if (!causal && left < 0 && right < 0) return nullptr;
  const DimExpr queries = a.q->dims.at(2), keys = a.k->dims.at(2);
  Value* i;
  if (a.ends) {  // per batch: the queries are the last of the keys in use
    Value* offset = c.emit("Sub", {a.ends, c.graph().literal(queries, DType::Int64)});
    Value* start = c.reshape(offset, {a.ends->dims.at(0), 1, 1, 1});
    i = c.pointwise("Add", {start, range(c, 0, queries, {1, 1, queries, 1})});
  } else {
    i = range(c, a.before, queries, {queries, 1});
  }
  Value* j = range(c, 0, keys, a.ends ? Dims{1, 1, 1, keys} : Dims{1, keys});
  Value* allowed = causal ? c.pointwise("LessOrEqual", {j, i}) : nullptr;
  auto both = [&](Value* more) { return allowed ? c.pointwise("And", {allowed, more}) : more; };
  if (left >= 0 || right >= 0) {
    Value* distance = c.pointwise("Sub", {i, j});
    if (left >= 0)
      allowed =
          both(c.emit("LessOrEqual", {distance, number(c, static_cast<double>(left), distance)}));
    if (right >= 0)
      allowed = both(
          c.emit("GreaterOrEqual", {distance, number(c, static_cast<double>(-right), distance)}));
  }
  return bias_of(c, allowed, a.q->dtype);
}

Value* attention_bias(OnnxCall& c, const Attention& a) {
  Value* bias = c.has(3) ? given_mask(c, a) : nullptr;
  if (Value* positions = positions_bias(c, a)) bias = add(c, bias, positions);
  if (a.ends) {
    const DimExpr keys = a.k->dims.at(2);
    Value* in_use = c.pointwise("Less", {range(c, 0, keys, {1, 1, 1, keys}),
                                         c.reshape(a.ends, {a.ends->dims.at(0), 1, 1, 1})});
    bias = add(c, bias, bias_of(c, in_use, a.q->dtype));
  }
  return bias;
}

Attention read_attention(OnnxCall& c) {
  Attention a;
  const int64_t q_heads = c.integer("q_num_heads", 0), kv_heads = c.integer("kv_num_heads", 0);
  a.q = split_heads(c, c.in(0), q_heads);
  a.k = split_heads(c, c.in(1), kv_heads);
  a.v = split_heads(c, c.in(2), kv_heads);
  if (c.has(4)) {
    Value* past = c.in(4);
    a.before = past->dims.at(2);
    a.k = c.concat({past, a.k}, 2);
    a.v = c.concat({c.in(5), a.v}, 2);
  }
  if (!c.sizes().equal(a.q->dims.at(3), a.k->dims.at(3)))
    c.refuse(str("queries and keys must have the same width, but found ", a.q->dims.at(3), " and ",
                 a.k->dims.at(3)));
  a.present_k = a.k;
  a.present_v = a.v;
  if (c.has(6)) a.ends = c.cast(c.in(6), DType::Int64);
  const int64_t heads = c.sizes().fix(a.q->dims.at(1)), shared = c.sizes().fix(a.k->dims.at(1));
  if (shared == 0 || heads % shared != 0)
    c.refuse("queries must have a multiple of the keys' heads");
  a.k = repeated_heads(c, a.k, heads / shared);
  a.v = repeated_heads(c, a.v, heads / shared);
  return a;
}

double scale_of(OnnxCall& c, const Attention& a) {
  if (c.has_attr("scale")) return c.number("scale", 1.0);
  return 1 / std::sqrt(static_cast<double>(c.sizes().fix(a.q->dims.at(3))));
}

Value* softmax_of(OnnxCall& c, Value* scores, Value* bias) {
  Value* y = c.emit("Softmax", {scores}, {{"axis", -1}});
  if (!bias) return y;
  // A query that sees no key gives zeros.
  const auto last = static_cast<int64_t>(bias->rank()) - 1;
  Value* most = c.reduce("ReduceMax", bias, {last}, true);
  Value* blind = c.emit("Equal", {most, number(c, -kInfinity, most)});
  return c.pointwise("Where", {blind, number(c, 0, y), y});
}

Values import_attention(OnnxCall& c) {
  const Attention a = read_attention(c);
  const double scale = scale_of(c, a), softcap = c.number("softcap", 0.0);
  const bool wants_scores = c.wants_output(3);
  // One op rounds once, where the specification rounds between the parts.
  const bool one_op = !wants_scores && softcap == 0 && is_floating(a.q->dtype) &&
                      c.sizes().equal(a.q->dims.at(3), a.k->dims.at(3));
  const bool plain = !c.has(3) && !c.has(4) && !c.has(6) && c.integer("left_window_size", -1) < 0 &&
                     c.integer("right_window_size", -1) < 0;
  Value *y = nullptr, *shown = nullptr;
  if (one_op) {
    const int64_t causal = plain ? c.integer("is_causal", 0) : 0;
    y = c.emit_all("ScaledDotProductAttention",
                   {a.q, a.k, a.v, plain ? nullptr : attention_bias(c, a)},
                   {{"is_causal", causal}, {"scale", scale}, {"ratio", 0.0}})[0];
  } else {
    // Both operands get the root of the scale, as the specification rounds.
    Value* root = number(c, std::sqrt(scale), a.q);
    Value* keys = c.transpose(c.emit("Mul", {a.k, root}), {0, 1, 3, 2});
    Value* products = c.emit("MatMul", {c.emit("Mul", {a.q, root}), keys});
    const int64_t mode = c.integer("qk_matmul_output_mode", 0);
    shown = products;
    if (softcap > 0) {
      Value* ratio = c.emit("Tanh", {c.emit("Div", {products, number(c, softcap, products)})});
      products = c.emit("Mul", {ratio, number(c, softcap, ratio)});
      if (mode == 1) shown = products;
    }
    Value* bias = attention_bias(c, a);
    Value* scores = bias ? c.pointwise("Add", {products, bias}) : products;
    if (mode == 2) shown = scores;
    const DType precision = c.dtype_attr("softmax_precision", a.q->dtype);
    Value* probabilities = softmax_of(c, c.cast(scores, precision), bias);
    if (mode == 3) shown = c.cast(probabilities, a.q->dtype);
    y = c.emit("MatMul", {c.cast(probabilities, a.q->dtype), a.v});
  }
  if (c.rank(0) == 3) y = join_heads(c, y);
  return {y, a.present_k, a.present_v, wants_scores ? shown : nullptr};
}

REGISTER_ONNX({{"Attention", 23, import_attention}});

}  // namespace
}  // namespace ortmodule
