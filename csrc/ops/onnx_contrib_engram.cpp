// Import of com.microsoft's layers of models with a memory of n-grams (Engram) and several residual
// streams (hyper-connections).
#include <cmath>

#include "base/error.h"
#include "ops/onnx_nested.h"
#include "ops/onnx_packed_rows.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// Rows [.., branches, size] normalized, times the scale of their branch.
Value* branch_norm(OnnxCall& c, Value* x, Value* scale) {
  const Dims branches(x->dims.end() - 2, x->dims.end());
  const auto last = static_cast<int64_t>(x->rank()) - 1;
  Value* mean = c.reduce("ReduceMean", c.emit("Mul", {x, x}), {last}, true);
  Value* shifted = c.emit("Add", {mean, number(c, c.number("epsilon", 1e-5), mean)});
  x = c.pointwise("Mul", {x, c.emit("Rsqrt", {shifted})});
  return c.pointwise("Mul", {x, c.reshape(scale, branches)});
}

// key, query [B, L, branches, size], value [B, L, size], scales [branches, size] of key, query and
// of the second output
Values import_engram_gate(OnnxCall& c) {
  const DType dtype = c.dtype(0), wide = compute_dtype(dtype);
  const auto operand = [&](size_t i) { return c.cast(c.in(i), wide); };
  Value *key = operand(0), *query = operand(1), *value = operand(2);
  if (key->rank() != 4 || query->rank() != 4 || value->rank() != 3)
    c.refuse("key and query must have four dimensions, and value three");
  const double size = static_cast<double>(c.sizes().fix(key->dims[3]));
  Value* both =
      c.pointwise("Mul", {branch_norm(c, key, operand(3)), branch_norm(c, query, operand(4))});
  Value* dot = c.reduce("ReduceSum", both, {3}, true);
  dot = c.emit("Mul", {dot, number(c, 1 / std::sqrt(size), dot)});
  Value* root = c.emit("Sqrt", {c.emit("Max", {c.emit("Abs", {dot}), number(c, 1e-6, dot)})});
  Value* gate = c.emit("Sigmoid", {c.emit("Mul", {c.emit("Sign", {dot}), root})});
  const Dims d = value->dims;
  Value* y = c.pointwise("Mul", {gate, c.reshape(value, {d[0], d[1], 1, d[2]})});
  if (!c.wants_output(1)) return {c.cast(y, dtype)};
  return {c.cast(y, dtype), c.cast(branch_norm(c, y, operand(5)), dtype)};
}

// Streams [.., C, H], which may lie beside each other in the last dimension.
Value* grouped_streams(OnnxCall& c, Value* x, int64_t branches) {
  if (branches > 0) {
    if (x->rank() == 0 || c.sizes().fix(x->dims.back()) % branches != 0)
      c.refuse("rows of streams must have as many whole branches");
    Dims dims(x->dims.begin(), x->dims.end() - 1);
    dims.insert(dims.end(), {branches, DimExpr::floor_div(x->dims.back(), branches)});
    x = c.reshape(x, dims);
  }
  if (x->rank() < 2) c.refuse("streams must have branches and their elements");
  return x;
}

// Factors [.., C], [.., C, 1] or [.., C, H] of streams, or in rows as long as theirs.
Value* of_streams(OnnxCall& c, Value* factors, const Value* streams) {
  if (factors->rank() == streams->rank()) return factors;
  if (factors->rank() + 1 != streams->rank())
    c.refuse("factors must have the dimensions of the streams, or all but the last");
  Dims dims = streams->dims;
  if (c.sizes().equal(factors->dims.back(), dims[dims.size() - 2])) dims.back() = DimExpr(1);
  return c.reshape(factors, dims);
}

// streams, pre_mix
Values import_pre_mix(OnnxCall& c) {
  const DType dtype = c.dtype(0), wide = compute_dtype(dtype);
  Value* x = grouped_streams(c, c.cast(c.in(0), wide), c.integer("num_branches", 0));
  Value* y = c.pointwise("Mul", {x, of_streams(c, c.cast(c.in(1), wide), x)});
  y = c.reduce("ReduceSum", y, {static_cast<int64_t>(x->rank()) - 2}, false);
  return {c.cast(c.emit("Mul", {y, number(c, c.number("reduction_scale", 1.0), y)}), dtype)};
}

// streams, block_output [.., H], post_mix, stream_mix? [.., C, C]
Values import_post_mix(OnnxCall& c) {
  const DType dtype = c.dtype(0), wide = compute_dtype(dtype);
  Value* x = grouped_streams(c, c.cast(c.in(0), wide), c.integer("num_branches", 0));
  Value* block = c.cast(c.in(1), wide);
  Dims dims = x->dims;
  dims[dims.size() - 2] = DimExpr(1);
  Value* added =
      c.pointwise("Mul", {of_streams(c, c.cast(c.in(2), wide), x), c.reshape(block, dims)});
  if (c.has(3)) {
    Value* mix = c.cast(c.in(3), wide);
    if (mix->rank() != x->rank()) c.refuse("stream_mix must have the dimensions of the streams");
    std::vector<int64_t> order;
    for (size_t i = 0; i < mix->rank(); ++i) order.push_back(static_cast<int64_t>(i));
    std::swap(order.end()[-1], order.end()[-2]);
    x = c.emit("MatMul", {c.transpose(mix, order), x});
  }
  return {c.cast(c.reshape(c.pointwise("Add", {x, added}), c.dims(0)), dtype)};
}

// Tokens before each place of a row: one, two, ... up to n - 1 of them, beginning with the place.
struct TokenRuns {
  Values shifted;            // [B, L] each
  Value* present = nullptr;  // the last n - 1 tokens
};

// A token before the row is `fill`, and so is, where `resets` says so, what lies before an end of
// text or in another segment.
TokenRuns token_runs(OnnxCall& c, int64_t n, Value* fill) {
  Value* ids = c.in(0);
  const DimExpr batch = ids->dims[0], length = ids->dims[1];
  const DimExpr held = n - 1;
  Value* past = c.has(3) ? c.in(3) : c.expand(fill, {batch, held});
  Value* all = c.concat({past, ids}, 1);
  TokenRuns runs;
  runs.present = c.slice(all, 1, length, length + held);
  Value* is_cut = nullptr;
  const auto cut = [&](Value* where) { is_cut = is_cut ? c.emit("Or", {is_cut, where}) : where; };
  const bool by_end = c.has(5) && c.flag("reset_on_eos");
  Value* starts = nullptr;  // [B, n - 1 + L]: whether a segment begins there
  if (c.has(6)) {
    Value* segments = c.in(6);
    Value* change = c.emit("NotEqual", {c.slice(segments, 1, 1, length),
                                        c.slice(segments, 1, 0, length - DimExpr(1))});
    starts = c.concat({c.full(0, {batch, held + DimExpr(1)}, DType::Bool), change}, 1);
  }
  for (int64_t j = 0; j < n; ++j) {
    const DimExpr first = held - DimExpr(j);
    Value* tokens = c.slice(all, 1, first, first + length);
    if (j > 0 && by_end) cut(c.pointwise("Equal", {tokens, fill}));
    if (j > 0 && starts) cut(c.slice(starts, 1, first + DimExpr(1), first + DimExpr(1) + length));
    if (is_cut) tokens = c.pointwise("Where", {is_cut, fill, tokens});
    runs.shifted.push_back(tokens);
  }
  return runs;
}

struct NGramSizes {
  int64_t n, heads;
};

NGramSizes n_gram_sizes(OnnxCall& c) {
  const NGramSizes sizes{c.integer("max_ngram_size"), c.integer("n_head_per_ngram")};
  if (sizes.n < 2 || sizes.heads < 1)
    c.refuse("max_ngram_size must be 2 or more, and n_head_per_ngram positive");
  return sizes;
}

// The hashes [.., heads] of runs of tokens, by multipliers and vocab_sizes.
Value* hashes_of(OnnxCall& c, const Values& shifted, const NGramSizes& sizes, Value* offsets) {
  Dims column = shifted.at(0)->dims;
  const Dims one(column.size(), 1);
  column.push_back(1);
  Value *factors = c.in(1), *mix = nullptr;
  Values hashes;
  for (int64_t j = 0; j < sizes.n; ++j) {
    Value* part = c.pointwise(
        "Mul", {shifted.at(static_cast<size_t>(j)), c.reshape(c.slice(factors, 0, j, j + 1), one)});
    mix = mix ? call_nested(c, "BitwiseXor", {mix, part})[0] : part;
    if (j == 0) continue;
    Value* most = c.slice(c.in(2), 0, (j - 1) * sizes.heads, j * sizes.heads);
    hashes.push_back(c.pointwise("Mod", {c.reshape(mix, column), most}, {{"fmod", 0}}));
  }
  Value* y = c.concat(hashes, static_cast<int64_t>(column.size()) - 1);
  return offsets ? c.pointwise("Add", {y, offsets}) : y;
}

// input_ids [B, L], multipliers, vocab_sizes, past_ids? [B, n - 1], head_offsets?, eos_token_id?,
// segment_ids?
Values import_n_gram_hash(OnnxCall& c) {
  Value* ids = c.in(0);
  const NGramSizes sizes = n_gram_sizes(c);
  if (ids->rank() != 2 || (c.has(6) && c.rank(6) != 2))
    c.refuse("input_ids and segment_ids must have two dimensions");
  const Dims one{1, 1};
  Value* fill = c.has(5) ? c.reshape(c.in(5), one)
                         : c.full(static_cast<double>(c.integer("pad_id")), one, ids->dtype);
  const TokenRuns runs = token_runs(c, sizes.n, fill);
  return {hashes_of(c, runs.shifted, sizes, c.optional(4)), runs.present};
}

// Where a run of tokens `back` long is cut, as another segment or the sequence begins: [tokens].
// `segments`: those of the tokens, then of the past, if it is known.
Value* segment_changes(OnnxCall& c, const PackedRows& rows, Value* segments, int64_t back,
                       int64_t held) {
  const auto at = [&](int64_t j) {
    return c.emit("Gather", {segments, index_before(c, rows, j, held)}, {{"axis", 0}});
  };
  Value* differs = c.emit("NotEqual", {at(back), at(back - 1)});
  if (c.has(8)) return differs;
  Value* inside =
      c.emit("GreaterOrEqual", {rows.place, number(c, static_cast<double>(back), rows.place)});
  return c.emit("And", {differs, inside});
}

// input_ids [tokens], multipliers, vocab_sizes, cumulative lengths, past_ids? [B, n - 1],
// head_offsets?, eos_token_id?, segment_ids?, past_segment_ids?, capture_count?
Values import_varlen_n_gram_hash(OnnxCall& c) {
  Value* ids = c.in(0);
  const NGramSizes sizes = n_gram_sizes(c);
  const int64_t held = sizes.n - 1, capacity = capture_capacity(c, 9);
  if (ids->rank() != 1) c.refuse("input_ids must be a vector");
  const PackedRows rows = packed_rows(c, c.in(3), ids->dims[0]);
  const Dims states{rows.sequences * DimExpr(held)};
  Value* pad = c.full(static_cast<double>(c.integer("pad_id")), {1}, ids->dtype);
  Value* fill = c.has(6) ? c.reshape(c.in(6), {1}) : pad;
  const auto with_past = [&](Value* own, Value* past) {
    return c.concat({own, past->rank() == 1 ? c.expand(past, states) : c.reshape(past, states)}, 0);
  };
  Value* all = with_past(ids, c.has(4) ? c.in(4) : fill);
  Value* segments =
      c.has(7) ? with_past(c.in(7), c.has(8) ? c.in(8) : c.full(0, {1}, c.dtype(7))) : nullptr;
  const bool by_end = c.has(6) && c.flag("reset_on_eos");
  Values shifted;
  Value* is_cut = nullptr;
  const auto cut = [&](Value* where) { is_cut = is_cut ? c.emit("Or", {is_cut, where}) : where; };
  for (int64_t j = 0; j < sizes.n; ++j) {
    Value* tokens = c.emit("Gather", {all, index_before(c, rows, j, held)}, {{"axis", 0}});
    if (j > 0 && by_end) cut(c.pointwise("Equal", {tokens, fill}));
    if (j > 0 && segments) cut(segment_changes(c, rows, segments, j, held));
    shifted.push_back(is_cut ? c.pointwise("Where", {is_cut, fill, tokens}) : tokens);
  }
  Value* last = index_of_last(c, rows, rows.length, held);
  Values y{hashes_of(c, shifted, sizes, c.optional(5)),
           c.emit("Gather", {all, last}, {{"axis", 0}}),
           segments ? c.emit("Gather", {segments, last}, {{"axis", 0}}) : nullptr, nullptr};
  if (capacity > 0) {
    Value* counts =
        c.expand(onnx_heads::range(c, 1, capacity, {1, capacity}), {rows.sequences, capacity});
    Value* captured = are_captured(c, rows, c.in(9), capacity);
    counts = c.emit("Where", {captured, counts, number(c, 0, counts)});
    Value* states_at = c.emit("Gather", {all, index_of_last(c, rows, counts, held)}, {{"axis", 0}});
    Dims dims = captured->dims;
    dims.push_back(1);
    y[3] = c.pointwise("Where", {c.reshape(captured, dims), states_at, pad});
  }
  return y;
}

REGISTER_ONNX({{"EngramGate", 1, import_engram_gate, nullptr, "com.microsoft"},
               {"HyperConnectionPreMix", 1, import_pre_mix, nullptr, "com.microsoft"},
               {"HyperConnectionPostMix", 1, import_post_mix, nullptr, "com.microsoft"},
               {"NGramHashMapping", 1, import_n_gram_hash, nullptr, "com.microsoft"},
               {"VarlenNGramHashMapping", 1, import_varlen_n_gram_hash, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
