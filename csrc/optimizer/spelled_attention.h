// Attention that a model writes as products and a softmax: softmax(scale q k' + mask) v, and in
// inference softmax(softcap tanh(scale q k' / softcap) + mask) v.
#pragma once

#include <functional>
#include <optional>

#include "optimizer/pass.h"

namespace ortmodule {

/// The operands of such attention, and what stands between its parts.
struct SpelledAttention {
  Value* q = nullptr;
  Value* keys = nullptr;  // transposed: [.., E, S]
  Value* v = nullptr;
  double scale = 1;
  double softcap = 0;  // 0: none
  Value* mask = nullptr;
  Value* seen = nullptr;  // a condition instead of a mask
  double hidden = 0;      // what replaces a score where `seen` is false
  bool inverted = false;  // where it is true
  bool guarded = false;   // NaN of rows without a key are replaced by zeros
  const Node* dropout = nullptr;
  bool casts = false;  // between the parts, to and from another float type
};

/// The attention whose last product is `product`, in any order of scale, transposes and mask. With
/// `training`, casts between float types and a dropout may stand between the parts.
std::optional<SpelledAttention> spelled_attention(const Node& product, bool training);

/// How a fusion takes such attention.
struct AttentionFusion {
  std::function<Reason(const Node& product, const SpelledAttention&)> cannot_fuse;
  /// The result instead of the product's, added in front of it.
  std::function<Value*(const SpelledAttention&)> fused;
};

/// Replaces all attention of the graph that the fusion can take; returns whether there was any.
bool fuse_spelled_attention(Graph& graph, PassContext& context, const AttentionFusion& fusion);

/// Why shapes or types of its operands are none of one op.
Reason cannot_be_one_op(const SpelledAttention& parts);

/// The keys as [.., S, E], added at the insertion point.
Value* attention_keys(Graph& graph, const SpelledAttention& parts);

}  // namespace ortmodule
