// What the imports of com.microsoft's attention operators share: scores with all their additions,
// rotated heads, and queries that share keys in a cache.
#pragma once

#include "ops/onnx_heads.h"

namespace ortmodule::onnx_heads {

/// `split_heads` that refuses a number of heads that is not positive.
Value* split_contrib_heads(OnnxCall& c, Value* x, int64_t heads);

/// The operands of an attention, and what is done to its scores.
struct Heads {
  Value *q = nullptr, *k = nullptr, *v = nullptr;  // [B, heads, L or S, E]
  Value* bias = nullptr;                           // added to the scores
  Value* seen = nullptr;                           // a condition: other scores are -inf
  double scale = 0, softcap = 0;                   // scale 0: 1 / sqrt(E)
  // [1, heads, 1, 1]: a score that takes its share, beside those of the keys
  Value* sink = nullptr;
};

/// Adds a bias to what is added to the scores already; null adds nothing.
void add_bias(OnnxCall& c, Heads& h, Value* bias);

/// What is returned of scores and shares, of hidden keys anything.
struct ShownScores {
  bool shares = false;  // else scores
  Value* value = nullptr;
};

/// The values by their shares [B, heads, L, E]. One op where nothing else is asked for.
Value* attended(OnnxCall& c, Heads h, ShownScores* shown = nullptr);

/// 0 where `seen`, else `masked`.
Value* bias_of(OnnxCall& c, Value* seen, double masked, DType dtype);

/// x [B, L, hidden] or [B, heads, L, E] rotated: positions [B, L], tables [rows, width / 2].
Value* rotated(OnnxCall& c, Value* x, Value* positions, Value* cosines, Value* sines, int64_t heads,
               bool interleaved);

/// New queries, keys and values of a cache.
struct GroupedQueries {
  Value *q = nullptr, *k = nullptr, *v = nullptr;  // [B, heads, L, E]
  Value* before = nullptr;                         // [B, 1]: keys that were there
  Value* positions = nullptr;                      // [B, L]: of the queries among the keys
};

/// Operands 0 to 2, or operand 0 as all three beside each other.
void read_grouped(OnnxCall& c, GroupedQueries& g, int64_t heads, int64_t kv_heads);

/// The cache of `total` keys with the new ones behind those that were there.
Value* with_new(OnnxCall& c, Value* past, Value* fresh, const GroupedQueries& g,
                const DimExpr& total);

/// The past with zeros in rows that hold no key, and so may be anything: for products with shares
/// of 0. Attention as one op does not read them.
Value* with_zeros(OnnxCall& c, Value* past, Value* is_held);

/// Keys or values [B, kv_heads, S, E] for `heads` heads of queries.
Value* repeated_heads(OnnxCall& c, Value* x, int64_t heads);

}  // namespace ortmodule::onnx_heads
