// Import of com.microsoft's attention operators.
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "ops/onnx_heads.h"
#include "ops/onnx_nested.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

using onnx_heads::join_heads, onnx_heads::kInfinity, onnx_heads::range;

Value* split_contrib_heads(OnnxCall& c, Value* x, int64_t heads) {
  if (heads <= 0) c.refuse("num_heads must be positive");
  return onnx_heads::split_heads(c, x, heads);
}

struct Heads {
  Value *q = nullptr, *k = nullptr, *v = nullptr;  // [B, heads, L or S, E]
  Value* bias = nullptr;                           // added to the scores
  Value* seen = nullptr;                           // a condition: other scores are -inf
  double scale = 0, softcap = 0;                   // scale 0: 1 / sqrt(E)
  // [1, heads, 1, 1]: a score that takes its share, beside those of the keys
  Value* sink = nullptr;
};

void add_bias(OnnxCall& c, Heads& h, Value* bias) {
  if (!bias) return;
  bias = c.cast(bias, h.q->dtype);
  h.bias = h.bias ? c.pointwise("Add", {h.bias, bias}) : bias;
}

// What is returned of scores and shares, of hidden keys anything.
struct ShownScores {
  bool shares = false;  // else scores
  Value* value = nullptr;
};

Value* attended(OnnxCall& c, Heads h, ShownScores* shown = nullptr) {
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

// 0 where `seen`, else `masked`
Value* bias_of(OnnxCall& c, Value* seen, double masked, DType dtype) {
  return c.emit("Where", {seen, c.literal(0, dtype), c.literal(masked, dtype)});
}

// Queries are the last of the keys and see none after them.
Value* causal_bias(OnnxCall& c, const Heads& h) {
  const DimExpr queries = h.q->dims.at(2), keys = h.k->dims.at(2);
  Value* seen = c.pointwise("LessOrEqual", {range(c, 0, keys, {1, keys}),
                                            range(c, keys - queries, queries, {queries, 1})});
  return bias_of(c, seen, -kInfinity, h.q->dtype);
}

// A mask of keys by content (0: masked) or by the ends, and starts, of what counts.
Value* mask_bias(OnnxCall& c, Value* mask, const Heads& h, bool is_index_pair) {
  const DimExpr batch = h.q->dims.at(0), queries = h.q->dims.at(2), keys = h.k->dims.at(2);
  const double filter = c.number("mask_filter_value", -10000.0);
  Value* seen;
  if (mask->rank() == 1) {
    mask = c.cast(mask, DType::Int64);
    Value* j = range(c, 0, keys, {1, keys});
    const bool pair = is_index_pair && c.sizes().equal(mask->dims.at(0), batch * DimExpr(2));
    if (!pair && !c.sizes().equal(mask->dims.at(0), batch))
      c.refuse(str("a mask of indices must have one for each row of the batch, but found ",
                   mask->dims.at(0)));
    auto column = [&](const DimExpr& first) {
      Value* part = pair ? c.slice(mask, 0, first, first + batch) : mask;
      return c.reshape(part, {batch, 1});
    };
    seen = c.pointwise("Less", {j, column(0)});
    if (pair) seen = c.emit("And", {seen, c.pointwise("GreaterOrEqual", {j, column(batch)})});
  } else {
    seen = c.emit("NotEqual", {mask, number(c, 0, mask)});
  }
  if (seen->rank() > 3) c.unsupported("a mask of rank 4 is not supported");
  if (!c.sizes().equal(seen->dims.at(seen->dims.size() - 1), keys))
    c.refuse("the mask must have a column for each key");
  const DimExpr rows = seen->rank() == 3 ? queries : DimExpr(1);
  return bias_of(c, c.reshape(seen, {batch, 1, rows, keys}), filter, h.q->dtype);
}

void refuse_shared_buffers(OnnxCall& c, std::initializer_list<size_t> operands) {
  for (size_t i : operands)
    if (c.has(i))
      c.unsupported(str("operand ", i, " (buffers shared between runs) is not supported"));
}

// ---- MultiHeadAttention ------------------------------------------------------------------------

// Part `i` of packed [B, L, heads, parts, E] as [B, heads, L, E]
Value* packed_part(OnnxCall& c, Value* x, int64_t i) {
  const Dims d = x->dims;
  Value* part = c.reshape(c.slice(x, 3, i, i + 1), {d.at(0), d.at(1), d.at(2), d.at(4)});
  return c.transpose(part, {0, 2, 1, 3});
}

void read_projected(OnnxCall& c, Heads& h, int64_t heads) {
  Value* bias = c.optional(3);
  Value* q = c.in(0);
  if (q->rank() == 5 || c.rank(1) != 3) {
    if (bias) c.unsupported("bias with packed operands is not supported");
    h.q = q->rank() == 5 ? packed_part(c, q, 0) : split_contrib_heads(c, q, heads);
    if (q->rank() == 5 || c.rank(1) == 5) {
      Value* packed = q->rank() == 5 ? q : c.in(1);
      const int64_t first = q->rank() == 5 ? 1 : 0;
      h.k = packed_part(c, packed, first);
      h.v = packed_part(c, packed, first + 1);
    } else {
      h.k = c.in(1);
      h.v = c.in(2);
    }
    return;
  }
  DimExpr at = 0;
  auto part = [&](size_t i) {
    Value* x = c.in(i);
    if (bias) {
      const DimExpr end = at + x->dims.at(2);
      x = c.emit("Add", {x, c.slice(bias, 0, at, end)});
      at = end;
    }
    return split_contrib_heads(c, x, heads);
  };
  h.q = part(0);
  h.k = part(1);
  h.v = part(2);
}

Values import_multi_head_attention(OnnxCall& c) {
  const int64_t heads = c.integer("num_heads");
  refuse_shared_buffers(c, {8, 9});
  if (c.wants_output(3)) c.unsupported("output qk is not supported");
  Heads h;
  if (c.rank(0) != 5 && !c.has(1)) c.refuse("key must be given");
  read_projected(c, h, heads);
  if (c.has(6)) {
    h.k = c.concat({c.in(6), h.k}, 2);
    h.v = c.concat({c.in(7), h.v}, 2);
  }
  h.scale = c.number("scale", 0.0);
  if (c.has(4)) add_bias(c, h, mask_bias(c, c.in(4), h, false));
  add_bias(c, h, c.optional(5));
  if (c.flag("unidirectional")) add_bias(c, h, causal_bias(c, h));
  Value *k = h.k, *v = h.v;
  return {join_heads(c, attended(c, h)), k, v};
}

// ---- Attention ---------------------------------------------------------------------------------

// Queries, keys and values [B, heads, L, E] from one product with stacked weights.
void project(OnnxCall& c, Heads& h, Value* projected, int64_t heads) {
  const std::vector<int64_t> sizes = c.integers("qkv_hidden_sizes");
  if (!sizes.empty() && sizes.size() != 3) c.refuse("qkv_hidden_sizes must have three numbers");
  const DimExpr third = DimExpr::floor_div(projected->dims.at(2), 3);
  DimExpr at = 0;
  size_t i = 0;
  for (Value** part : {&h.q, &h.k, &h.v}) {
    const DimExpr end = at + (sizes.empty() ? third : DimExpr(sizes.at(i++)));
    *part = split_contrib_heads(c, c.slice(projected, 2, at, end), heads);
    at = end;
  }
}

Values finish_attention(OnnxCall& c, Heads& h, Value* mask, Value* past, Value* bias) {
  if (past) {  // [2, B, heads, P, E]
    const Dims dims(past->dims.begin() + 1, past->dims.end());
    auto side = [&](int64_t i) { return c.reshape(c.slice(past, 0, i, i + 1), dims); };
    h.k = c.concat({side(0), h.k}, 2);
    h.v = c.concat({side(1), h.v}, 2);
  }
  h.scale = c.number("scale", 0.0);
  if (mask) add_bias(c, h, mask_bias(c, mask, h, true));
  add_bias(c, h, bias);
  if (c.flag("unidirectional")) add_bias(c, h, causal_bias(c, h));
  Value* y = join_heads(c, attended(c, h));
  if (!c.wants_output(1)) return {y};
  Dims stacked = h.k->dims;
  stacked.insert(stacked.begin(), DimExpr(1));
  return {y, c.concat({c.reshape(h.k, stacked), c.reshape(h.v, stacked)}, 0)};
}

void refuse_unsupported(OnnxCall& c) {
  if (c.flag("do_rotary")) c.unsupported("do_rotary is not supported");
  if (c.flag("past_present_share_buffer"))
    c.unsupported("past_present_share_buffer is not supported");
}

Values import_contrib_attention(OnnxCall& c) {
  refuse_unsupported(c);
  refuse_shared_buffers(c, {6});
  Value* projected = c.emit("MatMul", {c.in(0), c.in(1)});
  if (c.has(2)) projected = c.emit("Add", {projected, c.in(2)});
  Heads h;
  project(c, h, projected, c.integer("num_heads"));
  return finish_attention(c, h, c.optional(3), c.optional(4), c.optional(5));
}

// The same with a quantized product: input, weight, bias, input_scale, weight_scale, mask_index,
// input_zero_point, weight_zero_point, past
Values import_q_attention(OnnxCall& c) {
  refuse_unsupported(c);
  Value* sum = call_nested(c, "MatMulInteger", {c.in(0), c.in(1), c.optional(6), c.optional(7)})[0];
  Value* scale = c.pointwise("Mul", {c.in(3), c.in(4)});
  Value* projected = c.pointwise("Mul", {c.cast(sum, scale->dtype), scale});
  projected = c.pointwise("Add", {projected, c.in(2)});
  Heads h;
  project(c, h, projected, c.integer("num_heads"));
  return finish_attention(c, h, c.optional(5), c.optional(8), nullptr);
}

// ---- rotary embeddings and GroupQueryAttention -------------------------------------------------

// x [B, L, hidden] or [B, heads, L, E], positions [B, L], tables [rows, width / 2]
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

// input, position_ids, cos_cache, sin_cache
Values import_contrib_rotary(OnnxCall& c) {
  Value* x = c.in(0);
  if (c.flag("is_packed_batching")) c.unsupported("is_packed_batching is not supported");
  if (c.number("scale", 1.0) != 1.0) c.refuse("scale must be 1");
  Value* positions = c.cast(c.in(1), DType::Int64);
  const DimExpr length = x->dims.at(x->rank() == 3 ? 1 : 2), batch = x->dims.at(0);
  if (positions->rank() == 1) {  // of the first element
    positions =
        c.pointwise("Add", {range(c, 0, length, {1, length}), c.reshape(positions, {1, 1})});
    positions = c.emit("Expand", {positions}, {{"shape", Dims{batch, length}}});
  }
  return {
      rotated(c, x, positions, c.in(2), c.in(3), c.integer("num_heads", 0), c.flag("interleaved"))};
}

struct GroupedQueries {
  Value *q = nullptr, *k = nullptr, *v = nullptr;  // [B, heads, L, E]
  Value* before = nullptr;                         // [B, 1]: keys that were there
  Value* positions = nullptr;                      // [B, L]: of the queries among the keys
};

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

// The cache of `total` keys with the new ones behind those that were there.
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

// What queries attend to, with the keys' places [B, 1, 1, keys] (null: 0, 1, ...), and the cache
// after the call.
struct GroupedCache {
  Value *k = nullptr, *v = nullptr, *places = nullptr, *present_k = nullptr, *present_v = nullptr;
};

// The past with zeros in rows that hold no key, and so may be anything: for products with shares of
// 0. Attention as one op does not read them.
Value* with_zeros(OnnxCall& c, Value* past, Value* is_held) {
  const DimExpr rows = past->dims.at(2);
  Value* column = c.reshape(is_held, {is_held->dims.at(0), 1, rows, 1});
  return c.pointwise("Where", {column, past, c.literal(0, past->dtype)});
}

GroupedCache whole_cache(OnnxCall& c, const GroupedQueries& g, DimExpr total, bool reads_all) {
  Value *past_k = c.optional(3), *past_v = c.optional(4);
  if (past_k && c.sizes().at_most(total, past_k->dims.at(2))) total = past_k->dims.at(2);
  if (past_v && reads_all) {
    const DimExpr rows = past_v->dims.at(2);
    past_v = with_zeros(c, past_v, c.pointwise("Less", {range(c, 0, rows, {1, rows}), g.before}));
  }
  Value *k = with_new(c, past_k, g.k, g, total), *v = with_new(c, past_v, g.v, g, total);
  return {k, v, nullptr, k, v};
}

// The place of the first key that a cache of `rows` holds when there are `keys` of them: a full one
// drops rows until `window` - 1 and the new key are left.
Value* first_held(OnnxCall& c, Value* keys, const DimExpr& rows, int64_t window) {
  Value* dropped = c.graph().literal(rows - DimExpr(window - 1), DType::Int64);
  Value* over = c.pointwise("Sub", {keys, c.graph().literal(rows, DType::Int64)});
  over = c.pointwise("Max", {over, number(c, 0, over)});
  Value* up = c.graph().literal(rows - DimExpr(window), DType::Int64);
  return c.pointwise("Mul",
                     {c.pointwise("Div", {c.pointwise("Add", {over, up}), dropped}), dropped});
}

// A cache with as many rows as the window or more, whose first rows hold the last keys.
GroupedCache window_cache(OnnxCall& c, const GroupedQueries& g, Value* after, int64_t window) {
  if (c.has(10)) c.unsupported("attention_bias with sliding_window_cache is not supported");
  if (window <= 0) c.refuse("sliding_window_cache needs a positive local_window_size");
  if (!c.has(3) || !c.has(4)) c.refuse("sliding_window_cache needs past_key and past_value");
  Value *past_k = c.in(3), *past_v = c.in(4);
  const DimExpr batch = g.q->dims.at(0), fresh = g.k->dims.at(2), rows = past_k->dims.at(2);
  if (!c.sizes().at_most(DimExpr(window), rows))
    c.refuse(str("the cache must have at least local_window_size rows, ", window));
  Value *old = first_held(c, g.before, rows, window), *held = first_held(c, after, rows, window);
  const auto numbers = [&](const DimExpr& count, Value* from) {  // [B, count]
    return c.pointwise("Add", {range(c, 0, count, {1, count}), from});
  };
  constexpr double kBeyond = double{int64_t{1} << 40};  // no query is that far
  Value* places = numbers(rows, old);
  Value* is_held = c.pointwise("Less", {places, g.before});
  past_v = with_zeros(c, past_v, is_held);  // the new keys lie behind those rows
  places = c.pointwise("Where", {is_held, places, c.literal(kBeyond, DType::Int64)});
  places = c.concat({places, numbers(fresh, g.before)}, 1);
  Value *k = c.concat({past_k, g.k}, 2), *v = c.concat({past_v, g.v}, 2);
  Value* next = numbers(rows, held);
  Value* new_at = c.pointwise("Sub", {next, g.before});
  new_at = c.pointwise("Add", {new_at, c.graph().literal(rows, DType::Int64)});
  Value* at = c.pointwise(
      "Where", {c.pointwise("Less", {next, g.before}), c.pointwise("Sub", {next, old}), new_at});
  Value* last = c.graph().literal(rows + fresh - DimExpr(1), DType::Int64);
  at = c.reshape(c.pointwise("Min", {at, last}), {batch, 1, rows, 1});
  const auto kept = [&](Value* all) {
    const Dims sizes{batch, all->dims.at(1), rows, all->dims.at(3)};
    return c.emit("GatherElements", {all, c.expand(at, sizes)}, {{"axis", 2}});
  };
  return {k, v, c.reshape(places, {batch, 1, 1, rows + fresh}), kept(k), kept(v)};
}

// Whether queries see keys: up to their own place, and `window` before it if that is not negative.
Value* grouped_seen(OnnxCall& c, const GroupedQueries& g, const GroupedCache& cache,
                    int64_t window) {
  const DimExpr batch = g.q->dims.at(0), queries = g.q->dims.at(2), keys = cache.k->dims.at(2);
  Value *i = c.reshape(g.positions, {batch, 1, queries, 1}),
        *j = cache.places ? cache.places : range(c, 0, keys, {1, 1, 1, keys});
  Value* seen = c.pointwise("LessOrEqual", {j, i});
  if (window >= 0) {
    Value* distance = c.pointwise("Sub", {i, j});
    Value* near = c.emit("Less", {distance, number(c, static_cast<double>(window), distance)});
    seen = c.emit("And", {seen, near});
  }
  return seen;
}

// query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos_cache, sin_cache,
// position_ids, attention_bias, head_sink
Values import_group_query_attention(OnnxCall& c) {
  for (size_t i = 12; i < c.input_count(); ++i)
    if (c.has(i)) c.unsupported(str("operand ", i, " is not supported"));
  const int64_t shows = c.integer("qk_output", 0);  // 1: scores, 2: shares
  if (shows < 0 || shows > 2) c.refuse(str("qk_output must be 0, 1 or 2, but found ", shows));
  if (shows > 0 && c.flag("sliding_window_cache"))
    c.unsupported("qk_output with sliding_window_cache is not supported");
  if (!c.flag("causal", true)) c.refuse("causal must be 1");
  const int64_t heads = c.integer("num_heads"), kv_heads = c.integer("kv_num_heads");
  if (kv_heads <= 0 || heads % kv_heads != 0)
    c.refuse("queries must have a multiple of the keys' heads");
  GroupedQueries g;
  read_grouped(c, g, heads, kv_heads);
  const DimExpr batch = g.q->dims.at(0), length = g.q->dims.at(2);
  const DimExpr total = c.content_sizes(6).at(0);
  const int64_t window = c.integer("local_window_size", -1);
  Value* ends = c.reshape(c.cast(c.in(5), DType::Int64), {batch, 1});  // the last key's place
  if (c.sizes().equal(total, length)) {
    g.before = c.emit("Mul", {ends, number(c, 0, ends)});
  } else {
    Value* more = c.graph().literal(length - DimExpr(1), DType::Int64);
    g.before = c.emit("Sub", {ends, more});
  }
  g.positions = c.pointwise("Add", {g.before, range(c, 0, length, {1, length})});
  if (c.flag("do_rotary")) {
    Value* at = c.has(9) ? c.cast(c.in(9), DType::Int64) : g.positions;
    const bool interleaved = c.flag("rotary_interleaved");
    g.q = rotated(c, g.q, at, c.in(7), c.in(8), heads, interleaved);
    g.k = rotated(c, g.k, at, c.in(7), c.in(8), kv_heads, interleaved);
  }
  const bool reads_all = c.has(11) || shows > 0 || c.integer("smooth_softmax", 0) > 0 ||
                         (c.number("softcap", 0.0) > 0 && size_of(g.q->dtype) == 2);
  const GroupedCache cache =
      c.flag("sliding_window_cache")
          ? window_cache(c, g, c.pointwise("Add", {ends, number(c, 1, ends)}), window)
          : whole_cache(c, g, total, reads_all);
  // Queries that share a key are rows of its matrix.
  const DimExpr shared = heads / kv_heads, keys = cache.k->dims.at(2);
  Heads h{.q = g.q, .scale = c.number("scale", 0.0), .softcap = c.number("softcap", 0.0)};
  auto repeated = [&](Value* x) {
    const Dims d = x->dims;
    if (heads == kv_heads) return x;
    x = c.emit("Expand", {c.reshape(x, {d.at(0), d.at(1), 1, d.at(2), d.at(3)})},
               {{"shape", Dims{d.at(0), d.at(1), shared, d.at(2), d.at(3)}}});
    return c.reshape(x, {d.at(0), heads, d.at(2), d.at(3)});
  };
  h.k = repeated(cache.k);
  h.v = repeated(cache.v);
  Value* seen = grouped_seen(c, g, cache, window);
  if (!c.has(10)) {
    h.seen = seen;
  } else {
    add_bias(c, h, bias_of(c, seen, -kInfinity, g.q->dtype));
    Value* bias = c.in(10);
    if (!c.sizes().equal(bias->dims.at(bias->dims.size() - 1), keys))
      c.refuse("attention_bias must have a column for each key of the cache");
    add_bias(c, h, bias);
  }
  if (c.has(11))
    h.sink = c.reshape(c.in(11), {1, heads, 1, 1});
  else if (c.integer("smooth_softmax", 0) > 0)
    h.sink = c.full(0.0, {1, heads, 1, 1}, g.q->dtype);
  ShownScores shown{shows == 2};
  Value* y = join_heads(c, attended(c, h, shows > 0 ? &shown : nullptr));
  if (shows == 0) return {y, cache.present_k, cache.present_v};
  Value* qk = c.pointwise("Where", {seen, shown.value, c.literal(0, shown.value->dtype)});
  return {y, cache.present_k, cache.present_v, c.slice(qk, 3, 0, total)};
}

// ---- DecoderMaskedMultiHeadAttention -----------------------------------------------------------

// Rows of a cache as each beam has them: row t of beam b is that of the beam that `from`
// [batch, beams, rows] names there.
Value* by_beam(OnnxCall& c, Value* cache, Value* from) {
  const Dims d = cache->dims, beams = from->dims;
  if (!c.sizes().equal(d.at(0), beams.at(0) * beams.at(1)) ||
      !c.sizes().equal(d.at(2), beams.at(2)))
    c.refuse("cache_indirection must have a number for each row of each beam");
  const Dims split{beams.at(0), beams.at(1), d.at(1), d.at(2), d.at(3)};
  from = c.reshape(c.cast(from, DType::Int64), {beams.at(0), beams.at(1), 1, beams.at(2), 1});
  Value* rows =
      c.emit("GatherElements", {c.reshape(cache, split), c.expand(from, split)}, {{"axis", 1}});
  return c.reshape(rows, d);
}

// A new key and value for each row of the batch, written into a cache that has room for more.
struct DecoderStep {
  Value *k = nullptr, *v = nullptr, *present_k = nullptr, *present_v = nullptr;
  Value* seen = nullptr;  // [1, 1, 1, rows]
};

DecoderStep decoder_step(OnnxCall& c, Value* k, Value* v) {
  if (!c.flag("past_present_share_buffer") || !c.has(5) || !c.has(6) || !c.has(7))
    c.refuse("it needs past_present_share_buffer, past_key, past_value and past_sequence_length");
  Value *past_k = c.in(5), *past_v = c.in(6);
  const DimExpr rows = past_k->dims.at(2);
  Value* before = c.reshape(c.cast(c.in(7), DType::Int64), {1, 1, 1, 1});
  const auto with_row = [&](Value* past, Value* row) {
    return c.emit("ScatterElements", {past, c.expand(before, row->dims), row},
                  {{"axis", 2}, {"reduction", "none"}});
  };
  DecoderStep step;
  Value* places = range(c, 0, rows, {1, 1, 1, rows});
  step.seen = c.pointwise("LessOrEqual", {places, before});
  step.present_k = with_row(past_k, k);
  step.present_v = with_row(past_v, v);
  // Rows behind the new one may hold anything.
  step.k = step.present_k;
  step.v = with_zeros(c, step.present_v, c.reshape(step.seen, {1, rows}));
  if (c.has(9)) {
    // What lies behind the rows that were there names no beam.
    Value* held =
        c.pointwise("Less", {c.reshape(places, {1, 1, rows}), c.reshape(before, {1, 1, 1})});
    const Dims beams = c.in(9)->dims;
    Value* own = range(c, 0, beams.at(1), {1, beams.at(1), 1});
    Value* from = c.pointwise("Where", {held, c.cast(c.in(9), DType::Int64), own});
    step.k = by_beam(c, step.k, from);
    step.v = by_beam(c, step.v, from);
  }
  return step;
}

// query, key, value, mask_index, attention_bias, past_key, past_value, past_sequence_length,
// beam_width, cache_indirection, bias
Values import_decoder_masked_attention(OnnxCall& c) {
  const int64_t heads = c.integer("num_heads");
  if (!c.has(1) || c.rank(0) != 3) c.unsupported("packed queries, keys and values");
  if (c.wants_output(3)) c.unsupported("output qk is not supported");
  DimExpr at = 0;
  const auto projected = [&](size_t i) {
    Value* x = c.in(i);
    if (c.has(10)) {
      const DimExpr end = at + x->dims.at(2);
      x = c.emit("Add", {x, c.slice(c.in(10), 0, at, end)});
      at = end;
    }
    return split_contrib_heads(c, x, heads);
  };
  Heads h{.q = projected(0), .scale = c.number("scale", 0.0)};
  DecoderStep step;
  if (c.rank(1) == 4) {  // of an encoder
    h.k = c.in(1);
    h.v = c.in(2);
  } else {
    Value *k = projected(1), *v = projected(2);
    step = decoder_step(c, k, v);
    h.k = step.k;
    h.v = step.v;
    h.seen = step.seen;
  }
  const DimExpr keys = h.k->dims.at(2);
  const auto to_all_keys = [&](Value* x, size_t axis) {  // behind what is seen anything will do
    Dims pads(2 * x->rank(), DimExpr(0));
    pads.at(x->rank() + axis) = keys - x->dims.at(axis);
    return c.emit("Pad", {x}, {{"pads", pads}, {"value", 0.0}});
  };
  if (c.has(3)) {
    Value* mask = c.in(3);
    if (mask->rank() != 2) c.refuse("mask_index must have rank 2");
    Value* counted = c.emit("NotEqual", {mask, number(c, 0, mask)});
    Value* bias = bias_of(c, c.reshape(counted, {mask->dims[0], 1, 1, mask->dims[1]}),
                          c.number("mask_filter_value", -10000.0), h.q->dtype);
    add_bias(c, h, to_all_keys(bias, 3));
  }
  if (c.has(4)) add_bias(c, h, to_all_keys(c.in(4), 3));
  return {join_heads(c, attended(c, h)), step.present_k, step.present_v};
}

REGISTER_ONNX({{"DecoderMaskedMultiHeadAttention", 1, import_decoder_masked_attention, nullptr,
                "com.microsoft"},
               {"MultiHeadAttention", 1, import_multi_head_attention, nullptr, "com.microsoft"},
               {"Attention", 1, import_contrib_attention, nullptr, "com.microsoft"},
               {"QAttention", 1, import_q_attention, nullptr, "com.microsoft"},
               {"RotaryEmbedding", 1, import_contrib_rotary, nullptr, "com.microsoft"},
               {"GroupQueryAttention", 1, import_group_query_attention, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
