// What the row kernels of ScaledDotProductAttention (AttentionProbabilities, AttentionScoresGrad;
// see cpu/attention_rows.cpp) share.
#pragma once

#include <memory>

#include "kernels/attention_strip.h"
#include "kernels/kernel.h"
#include "kernels/philox.h"

namespace ortmodule {
inline namespace ORTM_ISA {

struct AttentionRowSettings {
  bool causal = false;
  double scale = 1.0;
  double kept_scale = 1.0;
  uint64_t threshold = 0;  // of random words that keep an element; 0: no dropout
  uint64_t rng = 0;

  explicit AttentionRowSettings(const Attrs& attrs)
      : causal(attrs.flag("is_causal")),
        scale(attrs.number("scale")),
        kept_scale(dropout_scale(attrs.number("ratio"))),
        threshold(dropout_threshold(attrs.number("ratio"))),
        rng(static_cast<uint64_t>(attrs.integer("rng"))) {}
};

/// KernelDef::prepare of both kernels.
inline std::shared_ptr<const void> prepare_attention_rows(const StepFacts& facts) {
  return std::make_shared<const AttentionRowSettings>(facts.node().attrs);
}

/// Logical index, among all scores, of the first element of row i of a strip with `rows` rows per
/// head: what dropout draws from.
ORTM_HD int64_t first_score(const StripPosition& at, int64_t rows, int64_t i) {
  return ((at.first_head + i / rows) * at.queries + at.first_row + i % rows) * at.keys;
}
/// Columns of that row that count.
ORTM_HD int64_t seen_columns(const StripPosition& at, int64_t rows, int64_t i, int64_t columns,
                             bool causal) {
  const int64_t seen = at.first_row + i % rows + 1;
  return causal && seen < columns ? seen : columns;
}

/// Gradient of a score: scale p (kept dp - sum p kept dp).
template <class C>
ORTM_HD C score_gradient(C p, C kept_dp, C sum, C scale) {
  return p * (kept_dp - sum) * scale;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
