#include "ops/onnx_contrib_heads.h"

#include <cmath>

#include "ops/onnx_nested.h"
#include "ops/op_def.h"

namespace ortmodule::onnx_heads {

Value* split_contrib_heads(OnnxCall& c, Value* x, int64_t heads) {
  if (heads <= 0) c.refuse("num_heads must be positive");
  return onnx_heads::split_heads(c, x, heads);
}

void add_bias(OnnxCall& c, Heads& h, Value* bias) {
  if (!bias) return;
  bias = c.cast(bias, h.q->dtype);
  h.bias = h.bias ? c.pointwise("Add", {h.bias, bias}) : bias;
}

Value* attended(OnnxCall& c, Heads h, ShownScores* shown) {
  if (h.scale == 0) h.scale = 1 / std::sqrt(static_cast<double>(c.sizes().fix(h.q->dims.at(3))));
  if (!h.bias && h.softcap == 0 && !h.sink && !shown)
    return c.emit_all("ScaledDotProductAttention", {h.q, h.k, h.v, h.seen},
                      {{"is_causal", 0}, {"scale", h.scale}, {"ratio", 0.0}})[0];
  Value* scores = c.emit("MatMul", {h.q, c.transpose(h.k, {0, 1, 3, 2})});
  scores = c.emit("Mul", {scores, number(c, h.scale, scores)});
  if (h.softcap > 0) {
    scores = c.emit("Tanh", {c.emit("Div", {scores, number(c, h.softcap, scores)})});
    scores = c.emit("Mul", {scores, number(c, h.softcap, scores)});
  }
  if (h.bias) scores = c.pointwise("Add", {scores, h.bias});
  if (shown) shown->value = scores;
  if (h.seen) scores = c.pointwise("Where", {h.seen, scores, c.literal(-kInfinity, scores->dtype)});
  const DimExpr keys = scores->dims.at(3);
  if (h.sink) {
    Dims column = scores->dims;
    column.at(3) = DimExpr(1);
    scores = c.concat({scores, c.expand(c.cast(h.sink, scores->dtype), column)}, 3);
  }
  Value* shares = c.emit("Softmax", {scores}, {{"axis", -1}});
  if (h.sink) shares = c.slice(shares, 3, 0, keys);
  if (shown && shown->shares) shown->value = shares;
  return c.emit("MatMul", {shares, h.v});
}

Value* bias_of(OnnxCall& c, Value* seen, double masked, DType dtype) {
  return c.emit("Where", {seen, c.literal(0, dtype), c.literal(masked, dtype)});
}

Value* rotated(OnnxCall& c, Value* x, Value* positions, Value* cosines, Value* sines, int64_t heads,
               bool interleaved) {
  OnnxAttrs attrs{{"interleaved", int64_t{interleaved}}};
  const int64_t width = 2 * c.sizes().fix(cosines->dims.at(1));
  if (x->rank() == 3) {
    if (heads <= 0) heads = c.sizes().fix(x->dims.at(2)) / width;
    if (heads <= 0) c.refuse("num_heads must be positive");
    attrs.emplace_back("num_heads", heads);
  }
  const DimExpr size = x->rank() == 3 ? DimExpr::floor_div(x->dims.at(2), heads) : x->dims.at(3);
  if (!c.sizes().equal(size, width)) attrs.emplace_back("rotary_embedding_dim", width);
  return call_nested(c, "RotaryEmbedding", {x, cosines, sines, positions}, attrs)[0];
}

void read_grouped(OnnxCall& c, GroupedQueries& g, int64_t heads, int64_t kv_heads) {
  Value* q = c.in(0);
  if (c.has(1)) {
    g.q = split_contrib_heads(c, q, heads);
    g.k = split_contrib_heads(c, c.in(1), kv_heads);
    g.v = split_contrib_heads(c, c.in(2), kv_heads);
    return;
  }
  const DimExpr width = DimExpr::floor_div(q->dims.at(2), heads + 2 * kv_heads);
  const DimExpr first = width * DimExpr(heads), more = width * DimExpr(kv_heads);
  g.q = split_contrib_heads(c, c.slice(q, 2, 0, first), heads);
  g.k = split_contrib_heads(c, c.slice(q, 2, first, first + more), kv_heads);
  g.v = split_contrib_heads(c, c.slice(q, 2, first + more, first + more + more), kv_heads);
}

Value* with_new(OnnxCall& c, Value* past, Value* fresh, const GroupedQueries& g,
                const DimExpr& total) {
  const Dims d = fresh->dims;
  Value* base;
  if (past) {
    Dims pads(8, DimExpr(0));
    pads.at(6) = total - past->dims.at(2);
    base =
        pads.at(6) == DimExpr(0) ? past : c.emit("Pad", {past}, {{"pads", pads}, {"value", 0.0}});
  } else {
    if (c.sizes().equal(total, d.at(2))) return fresh;
    base = c.full(0.0, {d.at(0), d.at(1), total, d.at(3)}, fresh->dtype);
  }
  Value* place = c.pointwise("Add", {g.before, range(c, 0, d.at(2), {1, d.at(2)})});
  place = c.emit("Expand", {c.reshape(place, {d.at(0), 1, d.at(2), 1})}, {{"shape", d}});
  return c.emit("ScatterElements", {base, place, fresh}, {{"axis", 2}, {"reduction", "none"}});
}

Value* with_zeros(OnnxCall& c, Value* past, Value* is_held) {
  const DimExpr rows = past->dims.at(2);
  Value* column = c.reshape(is_held, {is_held->dims.at(0), 1, rows, 1});
  return c.pointwise("Where", {column, past, c.literal(0, past->dtype)});
}

Value* repeated_heads(OnnxCall& c, Value* x, int64_t heads) {
  const Dims d = x->dims;
  const int64_t own = c.sizes().fix(d.at(1));
  if (own == heads) return x;
  if (own <= 0 || heads % own != 0) c.refuse("queries must have a multiple of the keys' heads");
  x = c.emit("Expand", {c.reshape(x, {d.at(0), own, 1, d.at(2), d.at(3)})},
             {{"shape", Dims{d.at(0), own, heads / own, d.at(2), d.at(3)}}});
  return c.reshape(x, {d.at(0), heads, d.at(2), d.at(3)});
}

}  // namespace ortmodule::onnx_heads
