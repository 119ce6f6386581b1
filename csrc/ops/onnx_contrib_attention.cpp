// Import of com.microsoft's attention operators.
#include <limits>

#include "base/error.h"
#include "ops/onnx_contrib_heads.h"
#include "ops/onnx_nested.h"
#include "ops/op_def.h"

namespace ortmodule::onnx_heads {
namespace {

// Queries stand behind the `past` keys of earlier calls, and see no key behind their own. Where
// there are more keys than these, the last query sees all of them, as in onnxruntime.
Value* causal_bias(OnnxCall& c, const Heads& h, const DimExpr& past) {
  const DimExpr queries = h.q->dims.at(2), keys = h.k->dims.at(2);
  Value* seen = c.pointwise("LessOrEqual",
                            {range(c, 0, keys, {1, keys}), range(c, past, queries, {queries, 1})});
  if (!c.sizes().equal(keys, past + queries)) {
    Value* last =
        c.pointwise("Equal", {range(c, 1, queries, {queries, 1}), size_number(c, queries)});
    seen = c.emit("Or", {seen, last});
  }
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
    const DimExpr count = mask->dims.at(0);
    const bool pair = is_index_pair && c.sizes().equal(count, batch * DimExpr(2));
    // The ends, then where each row's queries and keys begin among all of the batch.
    const bool all = !is_index_pair && c.sizes().equal(count, batch * DimExpr(3) + DimExpr(2));
    if (all) mask = c.slice(mask, 0, 0, batch);
    if (!pair && !c.sizes().equal(mask->dims.at(0), batch))
      c.refuse(str("a mask of indices must have one for each row of the batch, but found ", count));
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

// The biases of queries, keys and values lie behind each other in one vector.
class ProjectionBias {
 public:
  ProjectionBias(OnnxCall& c, Value* bias) : c_(c), bias_(bias) {}

  /// x [B, L, heads * E] with the bias of the next part.
  Value* added(Value* x) {
    if (!bias_) return x;
    const DimExpr begin = at_;
    at_ = begin + x->dims.at(2);
    return c_.emit("Add", {x, c_.slice(bias_, 0, begin, at_)});
  }

  /// The same for x [B, heads, L, E].
  Value* added_to_heads(Value* x) {
    if (!bias_) return x;
    const DimExpr heads = x->dims.at(1), width = x->dims.at(3), begin = at_;
    at_ = begin + heads * width;
    return c_.emit("Add", {x, c_.reshape(c_.slice(bias_, 0, begin, at_), {1, heads, 1, width})});
  }

 private:
  OnnxCall& c_;
  Value* bias_;
  DimExpr at_ = 0;
};

// Packed operands, or keys and values that are there already, as those of an encoder.
void read_projected(OnnxCall& c, Heads& h, int64_t heads) {
  Value* q = c.in(0);
  ProjectionBias bias(c, c.optional(3));
  if (q->rank() == 5) {
    h.q = bias.added_to_heads(packed_part(c, q, 0));
    h.k = bias.added_to_heads(packed_part(c, q, 1));
    h.v = bias.added_to_heads(packed_part(c, q, 2));
    return;
  }
  h.q = split_contrib_heads(c, bias.added(q), heads);
  if (c.rank(1) == 5) {
    if (c.has(3)) c.unsupported("bias with packed keys and values is not supported");
    h.k = packed_part(c, c.in(1), 0);
    h.v = packed_part(c, c.in(1), 1);
  } else if (c.rank(1) == 4) {  // with their bias
    h.k = c.in(1);
    h.v = c.in(2);
  } else {
    h.k = split_contrib_heads(c, bias.added(c.in(1)), heads);
    h.v = split_contrib_heads(c, bias.added(c.in(2)), heads);
  }
}

Values import_multi_head_attention(OnnxCall& c) {
  const int64_t heads = c.integer("num_heads");
  refuse_shared_buffers(c, {8, 9});
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
  if (c.flag("unidirectional"))
    add_bias(c, h, causal_bias(c, h, c.has(6) ? c.in(6)->dims.at(2) : DimExpr(0)));
  if (!c.wants_output(3)) return {join_heads(c, attended(c, h)), h.k, h.v};
  ShownScores shown;
  Value* y = join_heads(c, attended(c, h, &shown));
  // Keys that a query does not see have the lowest score, not -inf, as in onnxruntime.
  Value* lowest = number(c, std::numeric_limits<float>::lowest(), shown.value);
  return {y, h.k, h.v, c.emit("Max", {shown.value, lowest})};
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
  if (c.flag("unidirectional"))
    add_bias(c, h, causal_bias(c, h, h.k->dims.at(2) - h.q->dims.at(2)));
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
               {"QAttention", 1, import_q_attention, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule::onnx_heads
