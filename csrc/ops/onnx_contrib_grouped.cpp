// Import of com.microsoft's rotary embeddings and GroupQueryAttention.
#include "base/error.h"
#include "ops/onnx_contrib_heads.h"
#include "ops/op_def.h"

namespace ortmodule::onnx_heads {
namespace {

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

// What queries attend to, with the keys' places [B, 1, 1, keys] (null: 0, 1, ...), and the cache
// after the call.
struct GroupedCache {
  Value *k = nullptr, *v = nullptr, *places = nullptr, *present_k = nullptr, *present_v = nullptr;
};

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
  const DimExpr keys = cache.k->dims.at(2);
  Heads h{.q = g.q, .scale = c.number("scale", 0.0), .softcap = c.number("softcap", 0.0)};
  h.k = repeated_heads(c, cache.k, heads);
  h.v = repeated_heads(c, cache.v, heads);
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

REGISTER_ONNX({{"RotaryEmbedding", 1, import_contrib_rotary, nullptr, "com.microsoft"},
               {"GroupQueryAttention", 1, import_group_query_attention, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule::onnx_heads
