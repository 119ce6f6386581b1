// LinearAttention: attention without a softmax, whose keys and values so far are one matrix for
// each head. At each step of time the matrix S decays, takes in k (b (v - S^T k))^T, or k v^T, and
// gives scale S^T q. Heads lie beside each other: [batch, time, heads * width].
#include "ir/text.h"
#include "ops/infer_rules.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_linear_attention(InferContext& c) {
  const int64_t q_heads = c.attrs().integer("q_num_heads"),
                heads = c.attrs().integer("kv_num_heads");
  const Value &q = c.input(0), &k = c.input(1), &v = c.input(2);
  for (size_t i = 0; i < c.input_count(); ++i)
    if (c.has_input(i) && c.input(i).dtype != DType::Float32)
      c.fail(str("operand ", i, " must be f32, but found ", name_of(c.input(i).dtype)));
  if (heads <= 0 || q_heads <= 0 || q_heads % heads != 0 || q.rank() != 3 || k.rank() != 3 ||
      v.rank() != 3)
    c.fail(
        str("q, k and v must be [batch, time, heads * width], and q have a multiple of the "
            "heads of k, but found ",
            dims_text(q.dims), ", ", dims_text(k.dims), " and ", dims_text(v.dims), " for ",
            q_heads, " and ", heads, " heads"));
  const DimExpr keys = DimExpr::floor_div(k.dims[2], heads),
                values = DimExpr::floor_div(v.dims[2], heads);
  const Dims rows{q.dims[0], q.dims[1]}, state{q.dims[0], heads, keys, values};
  const auto check = [&](size_t i, const Dims& dims) {
    if (i < c.input_count() && c.has_input(i) && !may_equal(c.input(i).dims, dims))
      c.fail(str("operand ", i, " must have sizes ", dims_text(dims), ", but found ",
                 dims_text(c.input(i).dims)));
  };
  const auto of_rows = [&](const DimExpr& width) { return Dims{rows[0], rows[1], width}; };
  check(0, of_rows(keys * DimExpr(q_heads)));
  check(1, of_rows(keys * DimExpr(heads)));
  check(2, of_rows(values * DimExpr(heads)));
  check(3, state);
  const auto check_width = [&](size_t i, const DimExpr& one, const DimExpr& other) {
    if (i >= c.input_count() || !c.has_input(i)) return;
    const Dims& dims = c.input(i).dims;
    check(i, of_rows(dims.size() == 3 && may_equal(dims[2], one) ? one : other));
  };
  check_width(4, heads, keys * DimExpr(heads));
  check_width(5, heads, 1);
  c.set(0, DType::Float32, of_rows(values * DimExpr(q_heads)));
  c.set(1, DType::Float32, state);
}

double linear_attention_flops(const Attrs& attrs, const std::vector<Sizes>& in,
                              const std::vector<Sizes>& out) {
  const auto heads = static_cast<double>(attrs.integer("q_num_heads"));
  const auto steps = static_cast<double>(in[0][0] * in[0][1]);
  return 6.0 * steps * heads * static_cast<double>(out[1][2] * out[1][3]);
}

REGISTER_OP(LinearAttention, {.domain = "com.microsoft",
                              .inputs = {"q", "k", "v", "past?", "decay?", "beta?"},
                              .outputs = {"y", "present"},
                              .attrs = {{"scale", 0.0}, {"update_rule", "gated_delta"}},
                              .kind = OpKind::Opaque,
                              .infer = infer_linear_attention,
                              .flops = linear_attention_flops});

// ---- import ------------------------------------------------------------------------------------

struct LinearRule {
  std::string name;
  bool gated = false, corrected = false;

  explicit LinearRule(OnnxCall& c)
      : name(c.word("update_rule", {"gated_delta", "linear", "gated", "delta"})),
        gated(name == "gated" || name == "gated_delta"),
        corrected(name == "delta" || name == "gated_delta") {
    if (gated != c.has(4) || corrected != c.has(5))
      c.refuse(str("update_rule ", name, " needs other operands decay and beta"));
  }
};

Value* real(OnnxCall& c, size_t i) { return c.cast(c.in(i), DType::Float32); }

Values import_linear_attention(OnnxCall& c) {
  if (c.integer("state_window", 0) != 0) c.unsupported("attribute state_window has no rule");
  const LinearRule rule(c);
  Values y = c.emit_all("LinearAttention",
                        {real(c, 0), real(c, 1), real(c, 2), c.has(3) ? real(c, 3) : nullptr,
                         rule.gated ? real(c, 4) : nullptr, rule.corrected ? real(c, 5) : nullptr},
                        {{"q_num_heads", c.integer("q_num_heads")},
                         {"kv_num_heads", c.integer("kv_num_heads")},
                         {"scale", c.number("scale", 0.0)},
                         {"update_rule", rule.name}});
  return {c.cast(y.at(0), c.dtype(0)), c.cast(y.at(1), c.dtype(c.has(3) ? 3 : 0))};
}

/// Sizes of a GatedDeltaNet; keys have as many heads as queries.
struct DeltaSizes {
  DimExpr batch, steps;
  int64_t key_heads = 0, heads = 0, keys = 0, values = 0;
};

/// Sequences one after the other as rows of a batch, the shorter ones with zeros behind them.
struct DeltaRows {
  Value* places = nullptr;   // [batch, steps]: of each step among all
  Value* is_step = nullptr;  // [batch, steps]
  Value* back = nullptr;     // of each of all steps within [batch * steps]
};

/// Its queries, keys and values [batch, steps, heads, size].
struct DeltaOperands {
  Value *q = nullptr, *k = nullptr, *v = nullptr;
  DeltaSizes sizes;
  DeltaRows rows;  // of cu_seqlens; else empty
};

// Where sequences lie that begin and end at `cu_seqlens` (operand 3), and how long the longest is.
void read_sequences(OnnxCall& c, DeltaOperands& o) {
  if (c.rank(3) != 1) c.refuse("cu_seqlens must be a vector");
  const DimExpr all = c.dims(0).at(0);
  o.sizes.batch = c.dims(3)[0] - DimExpr(1);
  const Dims ends = c.content_sizes(3);
  if (ends.size() < 2 || !c.sizes().equal(ends.front(), 0) || !c.sizes().equal(ends.back(), all))
    c.refuse("cu_seqlens must go from 0 to the number of tokens");
  DimExpr longest = 0;
  for (size_t i = 1; i < ends.size(); ++i) {
    if (!c.sizes().at_most(ends[i - 1], ends[i])) c.refuse("cu_seqlens must not fall");
    longest = DimExpr::max(longest, ends[i] - ends[i - 1]);
  }
  o.sizes.steps = longest;
  const DimExpr batch = o.sizes.batch;
  Value* given = c.cast(c.in(3), DType::Int64);
  Value* begin = c.reshape(c.slice(given, 0, 0, batch), {batch, 1});
  Value* end = c.reshape(c.slice(given, 0, 1, batch + DimExpr(1)), {batch, 1});
  Value* step = c.reshape(c.emit("Range", {},
                                 {{"start", DimExpr(0)},
                                  {"limit", longest},
                                  {"delta", DimExpr(1)},
                                  {"dtype", DType::Int64}}),
                          {1, longest});
  Value* token = c.reshape(
      c.emit(
          "Range", {},
          {{"start", DimExpr(0)}, {"limit", all}, {"delta", DimExpr(1)}, {"dtype", DType::Int64}}),
      {1, all});
  Value* places = c.pointwise("Add", {begin, step});
  o.rows.is_step = c.pointwise("Less", {places, end});
  o.rows.places = c.pointwise("Where", {o.rows.is_step, places, number(c, 0, places)});
  // The sequence of a token is the number of those that end before it.
  Value* ended = c.cast(c.pointwise("LessOrEqual", {end, token}), DType::Int64);
  Value* sequence = c.reduce("ReduceSum", ended, {0}, false);
  Value* first = c.emit("Gather", {c.reshape(begin, {batch}), sequence}, {{"axis", 0}});
  Value* row = c.pointwise("Mul", {sequence, size_number(c, longest)});
  o.rows.back = c.emit("Add", {row, c.emit("Sub", {c.reshape(token, {all}), first})});
}

// Numbers of all steps, [all, ...] or [batch, steps, ...], as [batch, steps, *width].
Value* by_sequence(OnnxCall& c, Value* x, const DeltaOperands& o, const Dims& width) {
  const DeltaSizes& s = o.sizes;
  Dims dims{s.batch, s.steps};
  dims.insert(dims.end(), width.begin(), width.end());
  if (!o.rows.places) return c.reshape(x, dims);
  Dims flat{c.dims(0)[0]}, column{s.batch, s.steps};
  flat.insert(flat.end(), width.begin(), width.end());
  column.resize(dims.size(), DimExpr(1));
  x = c.emit("Gather", {c.reshape(x, flat), o.rows.places}, {{"axis", 0}});
  return c.pointwise("Where", {c.reshape(o.rows.is_step, column), x, number(c, 0, x)});
}

// A matrix of all three beside each other has the sizes of the state, its rows those of the batch
// one after the other.
DeltaOperands delta_operands(OnnxCall& c) {
  if (c.has(1) != c.has(2)) c.refuse("key and value must both be given, or both be in query");
  const bool packed = !c.has(1);
  Value* q = real(c, 0);
  const size_t rank = q->rank();
  DeltaOperands o;
  DeltaSizes& s = o.sizes;
  if (rank != (packed ? 2 : 3) && rank != (packed ? 3 : 4))
    c.refuse("query must have rows of heads, or be packed in rows");
  const bool has_time = rank == (packed ? 3u : 4u);
  if (c.has(3)) {
    if (has_time) c.refuse("cu_seqlens needs all tokens in the first dimension");
    read_sequences(c, o);
  } else {
    if (!has_time && !c.has(6)) c.refuse("initial_state must be given, as it tells the batch");
    s.batch = has_time ? q->dims[0] : c.dims(6).at(0);
    if (s.batch.is_constant() && s.batch.value() == 0) c.refuse("the batch must not be empty");
    s.steps = has_time ? q->dims[1] : DimExpr::floor_div(q->dims[0], s.batch);
  }
  if (packed) {
    if (!c.has(6) || c.rank(6) != 4) c.refuse("packed operands need an initial_state of rank 4");
    const Dims state = c.dims(6);
    s.heads = c.sizes().fix(state[1]);
    s.values = c.sizes().fix(state[2]);
    s.keys = c.sizes().fix(state[3]);
    const int64_t left = c.sizes().fix(q->dims.back()) - s.heads * s.values;
    if (s.keys <= 0 || left <= 0 || left % (2 * s.keys) != 0)
      c.refuse("rows must hold queries, keys and values of the sizes of the state");
    s.key_heads = left / (2 * s.keys);
  } else {
    const Dims k = c.dims(1), v = c.dims(2);
    if (k.size() != rank || v.size() != rank) c.refuse("query, key and value must have one rank");
    s.key_heads = c.sizes().fix(k[rank - 2]);
    s.heads = c.sizes().fix(v[rank - 2]);
    s.keys = c.sizes().fix(k[rank - 1]);
    s.values = c.sizes().fix(v[rank - 1]);
  }
  if (s.key_heads <= 0 || s.heads <= 0 || s.heads % s.key_heads != 0)
    c.refuse("values must have a multiple of the heads of queries and keys");
  const auto split = [&](Value* x, int64_t heads, int64_t size) {
    return by_sequence(c, x, o, {heads, size});
  };
  const int64_t width = s.key_heads * s.keys, last = static_cast<int64_t>(rank) - 1;
  const auto part = [&](int64_t begin, int64_t size) {
    return c.slice(q, last, DimExpr(begin), DimExpr(begin + size));
  };
  o.q = split(packed ? part(0, width) : q, s.key_heads, s.keys);
  o.k = split(packed ? part(width, width) : real(c, 1), s.key_heads, s.keys);
  o.v = split(packed ? part(2 * width, s.heads * s.values) : real(c, 2), s.heads, s.values);
  return o;
}

// Of length 1, if that is asked for, and repeated for the heads of values, beside each other.
Value* spread_heads(OnnxCall& c, Value* x, const DeltaSizes& s) {
  if (c.flag("qk_l2_norm")) {
    Value* squares = c.reduce("ReduceSum", c.emit("Mul", {x, x}), {3}, true);
    Value* shifted = c.emit("Add", {squares, number(c, 1e-6, squares)});
    x = c.pointwise("Mul", {x, c.emit("Rsqrt", {shifted})});
  }
  if (s.heads > s.key_heads) {
    const int64_t each = s.heads / s.key_heads;
    x = c.reshape(x, {s.batch, s.steps, s.key_heads, 1, s.keys});
    x = c.expand(x, {s.batch, s.steps, s.key_heads, each, s.keys});
  }
  return c.reshape(x, {s.batch, s.steps, s.heads * s.keys});
}

// The logarithm of what each step leaves of the state [batch, steps, heads or heads * keys].
Value* delta_decay(OnnxCall& c, const DeltaOperands& o) {
  const DeltaSizes& s = o.sizes;
  Value* decay = real(c, 4);
  const bool by_key = decay->rank() == (c.rank(0) == 4 ? 4 : 3);
  const int64_t width = by_key ? s.keys : 1;
  decay = by_sequence(c, decay, o, {s.heads, width});
  const std::string gate =
      c.word("gate_activation", {"none", "softplus", "qwen", "sigmoid", "kda"});
  if (gate != "none") {
    Value* rate = c.emit("Exp", {c.reshape(real(c, 7), {s.heads, 1})});
    const int64_t biases = c.sizes().fix(product(c.dims(8)));
    Value* bias = c.reshape(real(c, 8), {s.heads, biases / s.heads});
    decay = c.pointwise("Add", {decay, bias});
    if (gate == "softplus" || gate == "qwen") {
      decay = c.emit("Softplus", {decay}, {{"beta", 1.0}, {"threshold", 40.0}});
      decay = c.emit("Neg", {c.pointwise("Mul", {decay, rate})});
    } else {
      decay = c.emit("Sigmoid", {c.pointwise("Mul", {decay, rate})});
      decay = c.emit("Mul", {decay, number(c, c.number("gate_lower_bound", -5.0), decay)});
    }
  }
  if (o.rows.is_step) {  // what lies behind a sequence leaves all of its state
    Value* is_step = c.reshape(o.rows.is_step, {s.batch, s.steps, 1, 1});
    decay = c.pointwise("Where", {is_step, decay, number(c, 0, decay)});
  }
  return c.reshape(decay, {s.batch, s.steps, by_key ? s.heads * s.keys : s.heads});
}

// query, key?, value?, cu_seqlens?, decay?, beta?, initial_state?, a_log?, dt_bias?
// States are [batch, heads, values, keys].
Values import_gated_delta_net(OnnxCall& c) {
  if (c.integer("state_update_capacity", 0) != 0)
    c.unsupported("attribute state_update_capacity has no rule");
  const LinearRule rule(c);
  const DeltaOperands o = delta_operands(c);
  const DeltaSizes& s = o.sizes;
  Value* beta = nullptr;
  if (rule.corrected) {
    beta = by_sequence(c, real(c, 5), o, {s.heads});
    if (c.word("beta_activation", {"none", "sigmoid"}) == "sigmoid")
      beta = c.emit("Sigmoid", {beta});
  }
  const auto turned = [&](Value* state) { return c.transpose(state, {0, 1, 3, 2}); };
  Values y = c.emit_all(
      "LinearAttention",
      {spread_heads(c, o.q, s), spread_heads(c, o.k, s),
       c.reshape(o.v, {s.batch, s.steps, s.heads * s.values}),
       c.has(6) ? turned(real(c, 6)) : nullptr, rule.gated ? delta_decay(c, o) : nullptr, beta},
      {{"q_num_heads", s.heads},
       {"kv_num_heads", s.heads},
       {"scale", c.number("scale", 0.0)},
       {"update_rule", rule.name}});
  Value* out = y.at(0);
  if (o.rows.back) {
    out = c.reshape(out, {s.batch * s.steps, s.heads * s.values});
    out = c.emit("Gather", {out, o.rows.back}, {{"axis", 0}});
  }
  Dims dims(o.v->dims.begin(), o.v->dims.end());
  if (c.rank(0) == (c.has(1) ? 3u : 2u)) dims = {c.dims(0)[0], s.heads, s.values};
  return {c.cast(c.reshape(out, dims), c.dtype(0)), turned(y.at(1))};
}

REGISTER_ONNX({{"LinearAttention", 27, import_linear_attention},
               {"LinearAttention", 1, import_linear_attention, nullptr, "com.microsoft"},
               {"GatedDeltaNet", 1, import_gated_delta_net, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
