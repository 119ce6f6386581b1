// Import of com.microsoft's rotary embeddings and GroupQueryAttention.
#include "base/error.h"
#include "ops/onnx_contrib_heads.h"
#include "ops/onnx_few_bits.h"
#include "ops/onnx_nested.h"
#include "ops/op_def.h"

namespace ortmodule::onnx_heads {
namespace {

// input, position_ids, cos_cache, sin_cache. onnxruntime's kernels read no attribute `scale`.
Values import_contrib_rotary(OnnxCall& c) {
  Value* x = c.in(0);
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

// How a cache holds numbers: as they are, or as integers of 8 or 4 bits that are to be scaled.
class StoredNumbers {
 public:
  explicit StoredNumbers(OnnxCall& c) : c_(c), heads_(c.integer("kv_num_heads")) {
    const bool k = c.word("k_quant_type", {"NONE", "PER_TENSOR", "PER_CHANNEL"}) != "NONE",
               v = c.word("v_quant_type", {"NONE", "PER_TENSOR", "PER_CHANNEL"}) != "NONE";
    if (k != v || k != c.has(12) || v != c.has(13))
      c.refuse("k_quant_type and v_quant_type, k_scale and v_scale must be given together");
    if (!k) return;
    bits_ = c.integer("kv_cache_bit_width", 8);
    if (bits_ != 4 && bits_ != 8)
      c.refuse(str("kv_cache_bit_width must be 4 or 8, but found ", bits_));
    const DType held = bits_ == 8 ? DType::Int8 : DType::UInt8;
    for (size_t i : {3u, 4u})
      if (c.has(i) && c.dtype(i) != held)
        c.refuse("a quantized cache must be int8, or uint8 for 4 bits");
  }

  bool are_scaled() const { return bits_ != 0; }

  /// x [B, heads, L, E] as the cache holds it; pairs of 4 bits are a byte, the first one lowest.
  Value* stored(Value* x, size_t scale) const {
    if (!are_scaled()) return x;
    x = c_.cast(x, DType::Float32);
    x = c_.emit("Round", {c_.pointwise("Div", {x, factors(scale, x->dims.at(3))})});
    const double most = bits_ == 8 ? 127 : 7;
    x = c_.emit("Min", {c_.emit("Max", {x, number(c_, -most - 1, x)}), number(c_, most, x)});
    if (bits_ == 8) return c_.cast(x, DType::Int8);
    const Dims d = x->dims;
    const DimExpr bytes = DimExpr::floor_div(d[3], 2);
    x = c_.reshape(x, {d[0], d[1], d[2], bytes, 2});
    Value *low = c_.slice(x, 4, 0, 1), *high = c_.slice(x, 4, 1, 2);
    x = c_.emit("Add", {low, c_.emit("Mul", {high, number(c_, 16, high)})});
    x = c_.emit("Add", {x, number(c_, 8 + 16 * 8, x)});
    return c_.cast(c_.reshape(x, {d[0], d[1], d[2], bytes}), DType::UInt8);
  }

  /// What the cache holds as numbers of this type.
  Value* restored(Value* x, size_t scale, DType dtype) const {
    if (!are_scaled()) return x;
    const Dims d = x->dims;
    if (bits_ == 4) {
      x = c_.reshape(unpacked_bits(c_, x, 4), {d[0], d[1], d[2], d[3] * DimExpr(2)});
      x = c_.cast(x, DType::Float32);
      x = c_.emit("Sub", {x, number(c_, 8, x)});
    }
    x = c_.cast(x, DType::Float32);
    return c_.cast(c_.pointwise("Mul", {x, factors(scale, x->dims.at(3))}), dtype);
  }

 private:
  // One for all, or [1, heads, 1, E].
  Value* factors(size_t operand, const DimExpr& size) const {
    Value* scale = c_.in(operand);
    const bool shared = c_.sizes().equal(product(scale->dims), 1);
    return c_.reshape(scale, shared ? Dims{1, 1, 1, 1} : Dims{1, heads_, 1, size});
  }

  OnnxCall& c_;
  int64_t heads_ = 0, bits_ = 0;
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

// Whether queries see keys: up to their own place, and `window` before it if that is not negative;
// without `causal` up to the last one's.
Value* grouped_seen(OnnxCall& c, const GroupedQueries& g, const GroupedCache& cache, Value* ends,
                    bool causal, int64_t window) {
  const DimExpr batch = g.q->dims.at(0), queries = g.q->dims.at(2), keys = cache.k->dims.at(2);
  Value *i = c.reshape(g.positions, {batch, 1, queries, 1}),
        *j = cache.places ? cache.places : range(c, 0, keys, {1, 1, 1, keys});
  Value* seen = c.pointwise("LessOrEqual", {j, causal ? i : c.reshape(ends, {batch, 1, 1, 1})});
  if (window >= 0) {
    Value* distance = c.pointwise("Sub", {i, j});
    Value* near = c.emit("Less", {distance, number(c, static_cast<double>(window), distance)});
    seen = c.emit("And", {seen, near});
  }
  return seen;
}

// The columns of a bias [B or 1, heads or 1, L, total keys] of the keys of the cache.
Value* bias_of_cache(OnnxCall& c, Value* bias, const GroupedQueries& g, const GroupedCache& cache) {
  if (bias->rank() != 4) c.refuse("attention_bias must have four dimensions");
  const DimExpr keys = cache.k->dims.at(2), given = bias->dims[3];
  if (cache.places) {
    const Dims dims{g.q->dims.at(0), bias->dims[1], bias->dims[2], keys};
    Value* last = size_number(c, given - DimExpr(1));
    Value* places = c.expand(c.pointwise("Min", {cache.places, last}), dims);
    Value* rows = c.expand(bias, {dims[0], dims[1], dims[2], given});
    return c.emit("GatherElements", {rows, places}, {{"axis", 3}});
  }
  if (c.sizes().equal(given, keys)) return bias;
  if (!c.sizes().at_most(given, keys))
    c.refuse("attention_bias must have a column for each key of the cache");
  Dims pads(8, DimExpr(0));  // rows of a cache behind the keys that are there
  pads.at(7) = keys - given;
  return c.emit("Pad", {bias}, {{"pads", pads}, {"value", 0.0}});
}

// Each head of queries and keys normalized and rotated, as far as the node says so.
void prepare_heads(OnnxCall& c, GroupedQueries& g) {
  if (c.has(14) != c.has(15)) c.refuse("q_norm_weight and k_norm_weight must be given together");
  const double epsilon = c.number("qk_norm_epsilon", 1e-6);
  const auto normalized = [&](Value* x, size_t weight, std::string_view own) {
    return call_nested(c, "RMSNormalization", {x, c.in(weight)},
                       {{"axis", int64_t{-1}}, {"epsilon", c.number(own, epsilon)}})[0];
  };
  if (c.has(14)) {
    g.q = normalized(g.q, 14, "q_norm_epsilon");
    g.k = normalized(g.k, 15, "k_norm_epsilon");
  }
  if (!c.flag("do_rotary")) return;
  Value* at = c.has(9) ? c.cast(c.in(9), DType::Int64) : g.positions;
  const bool interleaved = c.flag("rotary_interleaved");
  g.q = rotated(c, g.q, at, c.in(7), c.in(8), c.integer("num_heads"), interleaved);
  g.k = rotated(c, g.k, at, c.in(7), c.in(8), c.integer("kv_num_heads"), interleaved);
}

// The number of keys before the new ones [B, 1]. Of a chunk that is padded (query_seqlens) only the
// first rows are new.
Value* keys_before(OnnxCall& c, Value* ends, const DimExpr& length, const DimExpr& total) {
  if (c.has(16)) {
    Value* fresh = c.reshape(c.cast(c.in(16), DType::Int64), ends->dims);
    return c.emit("Sub", {c.emit("Add", {ends, number(c, 1, ends)}), fresh});
  }
  if (c.sizes().equal(total, length)) return c.emit("Mul", {ends, number(c, 0, ends)});
  return c.emit("Sub", {ends, size_number(c, length - DimExpr(1))});
}

void check_grouped(OnnxCall& c) {
  const int64_t heads = c.integer("num_heads"), kv_heads = c.integer("kv_num_heads");
  if (kv_heads <= 0 || heads % kv_heads != 0)
    c.refuse("queries must have a multiple of the keys' heads");
  const int64_t shows = c.integer("qk_output", 0);  // 1: scores, 2: shares
  if (shows < 0 || shows > 2) c.refuse(str("qk_output must be 0, 1 or 2, but found ", shows));
  if (shows > 0 && c.flag("sliding_window_cache"))
    c.unsupported("qk_output with sliding_window_cache is not supported");
  const bool causal = c.flag("causal", true);
  if (!causal && c.integer("local_window_size", -1) >= 0)
    c.refuse("local_window_size must be -1 if causal is 0");
  if (!causal && c.has(16)) c.refuse("query_seqlens needs causal 1");
}

// query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos_cache, sin_cache,
// position_ids, attention_bias, head_sink, k_scale, v_scale, q_norm_weight, k_norm_weight,
// query_seqlens
Values import_group_query_attention(OnnxCall& c) {
  check_grouped(c);
  const int64_t heads = c.integer("num_heads"), shows = c.integer("qk_output", 0),
                window = c.integer("local_window_size", -1);
  GroupedQueries g;
  read_grouped(c, g, heads, c.integer("kv_num_heads"));
  const DimExpr batch = g.q->dims.at(0), length = g.q->dims.at(2);
  const DimExpr total = c.content_sizes(6).at(0);
  Value* ends = c.reshape(c.cast(c.in(5), DType::Int64), {batch, 1});  // the last key's place
  g.before = keys_before(c, ends, length, total);
  g.positions = c.pointwise("Add", {g.before, range(c, 0, length, {1, length})});
  prepare_heads(c, g);
  const StoredNumbers numbers(c);
  g.k = numbers.stored(g.k, 12);
  g.v = numbers.stored(g.v, 13);
  const bool reads_all = c.has(11) || shows > 0 || c.integer("smooth_softmax", 0) > 0 ||
                         (c.number("softcap", 0.0) > 0 && size_of(g.q->dtype) == 2);
  GroupedCache cache = c.flag("sliding_window_cache")
                           ? window_cache(c, g, c.emit("Add", {ends, number(c, 1, ends)}), window)
                           : whole_cache(c, g, total, reads_all && !numbers.are_scaled());
  cache.k = numbers.restored(cache.k, 12, g.q->dtype);
  cache.v = numbers.restored(cache.v, 13, g.q->dtype);
  Heads h{.q = g.q, .scale = c.number("scale", 0.0), .softcap = c.number("softcap", 0.0)};
  h.k = repeated_heads(c, cache.k, heads);
  h.v = repeated_heads(c, cache.v, heads);
  Value* seen = grouped_seen(c, g, cache, ends, c.flag("causal", true), window);
  if (!c.has(10)) {
    h.seen = seen;
  } else {
    add_bias(c, h, bias_of(c, seen, -kInfinity, g.q->dtype));
    add_bias(c, h, bias_of_cache(c, c.in(10), g, cache));
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
