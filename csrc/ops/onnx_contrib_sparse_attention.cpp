// Import of com.microsoft's SparseAttention (Phi-3-small): causal attention to some blocks of keys.
#include "base/error.h"
#include "ops/onnx_contrib_heads.h"
#include "ops/op_def.h"

namespace ortmodule::onnx_heads {
namespace {

// Which blocks of keys [layouts, blocks, blocks] a block of queries sees: `ends` [layouts, blocks +
// 1] has where its entries in `columns` [layouts, entries] begin and end. What is behind the last
// end is no block.
Value* seen_blocks(OnnxCall& c, Value* ends, Value* columns) {
  if (ends->rank() != 2 || columns->rank() != 2 ||
      !c.sizes().equal(ends->dims[0], columns->dims[0]))
    c.refuse("block_row_indices and block_col_indices must be matrices of as many rows");
  const DimExpr layouts = ends->dims[0], blocks = ends->dims[1] - DimExpr(1),
                entries = columns->dims[1];
  ends = c.cast(ends, DType::Int64);
  columns = c.cast(columns, DType::Int64);
  const auto bound = [&](int64_t first) {
    return c.reshape(c.slice(ends, 1, first, blocks + DimExpr(first)), {layouts, blocks, 1});
  };
  Value* entry = range(c, 0, entries, {1, 1, entries});
  Value* in_row = c.emit("And", c.broadcast({c.pointwise("GreaterOrEqual", {entry, bound(0)}),
                                             c.pointwise("Less", {entry, bound(1)})}));
  Value* in_column = c.pointwise(
      "Equal", {c.reshape(columns, {layouts, entries, 1}), range(c, 0, blocks, {1, 1, blocks})});
  Value* count =
      c.emit("MatMul", {c.cast(in_row, DType::Float32), c.cast(in_column, DType::Float32)});
  return c.emit("Greater", {count, number(c, 0, count)});
}

// Whether queries see keys [B, heads, L, keys]: heads take layouts in turn.
Value* seen_keys(OnnxCall& c, const GroupedQueries& g, const DimExpr& keys, int64_t heads) {
  const int64_t block = c.integer("sparse_block_size");
  if (block <= 0) c.refuse(str("sparse_block_size must be positive, but found ", block));
  Value* blocks = seen_blocks(c, c.in(5), c.in(6));
  const int64_t layouts = c.sizes().fix(blocks->dims[0]), rows = c.sizes().fix(blocks->dims[1]);
  if (layouts <= 0 || heads % layouts != 0)
    c.refuse(
        str("num_heads must be a multiple of the layouts, but found ", heads, " and ", layouts));
  const DimExpr batch = g.q->dims.at(0), queries = g.q->dims.at(2);
  const auto block_of = [&](Value* places) {
    Value* of = c.emit("Div", {places, number(c, static_cast<double>(block), places)});
    return c.emit("Min", {of, number(c, static_cast<double>(rows - 1), of)});
  };
  Value* j = range(c, 0, keys, {keys});
  Value* seen = c.emit("Gather", {blocks, block_of(j)}, {{"axis", 2}});
  seen = c.emit("Gather", {seen, block_of(g.positions)}, {{"axis", 1}});  // [layouts, B, L, keys]
  seen = c.reshape(c.transpose(seen, {1, 0, 2, 3}), {batch, 1, layouts, queries, keys});
  Value* causal = c.pointwise("LessOrEqual", {c.reshape(j, {1, 1, 1, 1, keys}),
                                              c.reshape(g.positions, {batch, 1, 1, queries, 1})});
  seen = c.pointwise("And", {seen, causal});
  seen = c.expand(seen, {batch, heads / layouts, layouts, queries, keys});
  return c.reshape(seen, {batch, heads, queries, keys});
}

// query, key, value, past_key, past_value, block_row_indices, block_col_indices,
// total_sequence_length, key_total_sequence_lengths, cos_cache, sin_cache
Values import_sparse_attention(OnnxCall& c) {
  const int64_t heads = c.integer("num_heads"), kv_heads = c.integer("kv_num_heads");
  if (kv_heads <= 0 || heads % kv_heads != 0)
    c.refuse("queries must have a multiple of the keys' heads");
  GroupedQueries g;
  read_grouped(c, g, heads, kv_heads);
  Value *past_k = c.in(3), *past_v = c.in(4);
  const DimExpr batch = g.q->dims.at(0), length = g.q->dims.at(2), rows = past_k->dims.at(2);
  const DimExpr total = c.content_sizes(7).at(0);
  if (!c.sizes().at_most(total, rows))
    c.refuse("the cache must have a row for each key of total_sequence_length");
  Value* after = c.reshape(c.cast(c.in(8), DType::Int64), {batch, 1});
  const bool is_prompt = c.sizes().equal(total, length);
  g.before = is_prompt ? c.emit("Mul", {after, number(c, 0, after)})
                       : c.emit("Sub", {after, size_number(c, length)});
  g.positions = c.pointwise("Add", {g.before, range(c, 0, length, {1, length})});
  if (c.flag("do_rotary")) {
    const bool interleaved = c.flag("rotary_interleaved");
    g.q = rotated(c, g.q, g.positions, c.in(9), c.in(10), heads, interleaved);
    g.k = rotated(c, g.k, g.positions, c.in(9), c.in(10), kv_heads, interleaved);
  }
  Value *k = with_new(c, past_k, g.k, g, rows), *v = with_new(c, past_v, g.v, g, rows);
  Heads h{.q = g.q,
          .k = repeated_heads(c, c.slice(k, 2, 0, total), heads),
          .v = repeated_heads(c, c.slice(v, 2, 0, total), heads),
          .seen = seen_keys(c, g, total, heads),
          .scale = c.number("scale", 0.0)};
  return {join_heads(c, attended(c, h)), k, v};
}

REGISTER_ONNX({{"SparseAttention", 1, import_sparse_attention, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule::onnx_heads
