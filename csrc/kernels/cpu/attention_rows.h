// What ScaledDotProductAttention does to rows of scores between its matrix products, in place:
//   forward    scores -> e = exp(scores + mask - most), whose sum gives the row's `inverse`;
//              the kept ones of e / (1 - ratio)
//   backward   scores, dp -> kept probabilities p = e inverse / (1 - ratio), ds = p (dp - delta)
// with dp the gradient of the kept probabilities and delta = sum p dp = sum dy y: the first where y
// was rounded to 16 bits, since dp - delta may be small. Both start from the same bits. A row that
// sees nothing has probabilities of zero, as in torch's _safe_softmax.
#pragma once

#include "kernels/cpu/panel_product.h"
#include "kernels/cpu/philox_words.h"
#include "kernels/cpu/row_math.h"
#include "kernels/philox.h"

namespace ortmodule {
inline namespace ORTM_ISA {

struct AttentionSettings {
  bool causal = false;
  bool drops = false;
  bool nan_if_blind = false;  // of rows without a key, as softmax gives; else zeros
  double scale = 1.0;
  double softcap = 0;  // 0: none
  double kept_scale = 1.0;
  uint64_t threshold = 0;  // of random words that keep an element
  uint64_t rng = 0;

  explicit AttentionSettings(const Attrs& attrs)
      : causal(attrs.flag("is_causal")),
        drops(attrs.number("ratio") > 0),
        nan_if_blind(attrs.flag("nan_if_blind")),
        scale(attrs.number("scale")),
        softcap(attrs.number("softcap", 0)),
        kept_scale(dropout_scale(attrs.number("ratio"))),
        threshold(dropout_threshold(attrs.number("ratio"))),
        rng(static_cast<uint64_t>(attrs.integer("rng", 0))) {}
};

/// The mask's part for one row: null data if there is none.
struct MaskRow {
  const char* data = nullptr;
  DType dtype = DType::Undefined;
  int64_t stride = 0;  // elements
};

template <class C>
void add_mask(const MaskRow& mask, int64_t count, C* x) {
  constexpr C kLeast = -std::numeric_limits<C>::infinity();
  if (mask.dtype == DType::Bool) {
    const bool* seen = reinterpret_cast<const bool*>(mask.data);
    for (int64_t i = 0; i < count; ++i) x[i] = seen[i * mask.stride] ? x[i] : kLeast;
    return;
  }
  dispatch_float(mask.dtype, [&]<class M> {
    const M* added = reinterpret_cast<const M*>(mask.data);
    for (int64_t i = 0; i < count; ++i) x[i] += static_cast<C>(computed(added[i * mask.stride]));
  });
}

/// Makes a row's probabilities exp(score - most) * inverse.
template <class C>
struct RowStatistics {
  C most = 0, inverse = 0;
};

/// Scores to exp(score - most).
template <class C>
RowStatistics<C> exponentials(int64_t count, C* x) {
  const C most = row_max(count, x);
  if (most == -std::numeric_limits<C>::infinity()) {
    // Nothing is seen, or row_max left NaN out: a row with one is NaN, as in torch.
    const double sum = row_sum(
        count, [](auto v) { return v; }, x);
    std::fill(x, x + count, C(0));
    return {C(0), std::isnan(sum) ? static_cast<C>(sum) : C(0)};
  }
  return {most, static_cast<C>(1.0 / row_exp(count, x, most, x))};
}

/// x = softcap tanh(x), of scores that were divided by `softcap`.
inline void cap_scores(double softcap, int64_t count, float* x) {
  const FloatVec cap(static_cast<float>(softcap));
  map_vectors([&](FloatVec v) { return cap * fast_tanh(v); }, count, x, x);
}
inline void cap_scores(double softcap, int64_t count, double* x) {
  for (int64_t i = 0; i < count; ++i) x[i] = softcap * std::tanh(x[i]);
}

/// Keys [begin, end) that some row sees.
struct KeyRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

/// Widens `range` by what a row of a mask over `keys` keys lets see.
inline void widen_by_mask(const MaskRow& mask, int64_t keys, KeyRange& range) {
  const auto widen = [&](const auto& is_hidden) {
    int64_t begin = 0, end = keys;
    while (end > range.end && is_hidden(end - 1)) --end;
    while (begin < range.begin && is_hidden(begin)) ++begin;
    range = {begin, end};
  };
  if (mask.dtype == DType::Bool) {
    const bool* seen = reinterpret_cast<const bool*>(mask.data);
    widen([&](int64_t i) { return !seen[i * mask.stride]; });
    return;
  }
  dispatch_float(mask.dtype, [&]<class M> {
    using C = ComputeOf<M>;
    const M* added = reinterpret_cast<const M*>(mask.data);
    widen([&](int64_t i) {
      return static_cast<C>(computed(added[i * mask.stride])) ==
             -std::numeric_limits<C>::infinity();
    });
  });
}

/// Random words of a row of scores.
struct RowWords {
  uint64_t seed = 0, rng = 0, first = 0;  // logical index of the row's first element

  template <class Body>
  void for_each_chunk(int64_t count, const Body& body) const {
    for_each_philox_chunk(seed, rng, first, count, body);
  }
};

/// 1 / (1 - ratio) if the word keeps an element, otherwise 0.
template <class C>
class Kept {
 public:
  explicit Kept(const AttentionSettings& s)
      : scale_(s.threshold >> 32 ? C(0) : static_cast<C>(s.kept_scale)),  // no 32-bit word reaches
        least_(static_cast<uint32_t>(s.threshold)) {}
  C operator()(uint32_t word) const { return word >= least_ ? scale_ : C(0); }

 private:
  C scale_;
  uint32_t least_;
};

template <class C>
void drop_row(const AttentionSettings& s, const RowWords& random, int64_t count, C* x) {
  const Kept<C> kept(s);
  random.for_each_chunk(count, [&](int64_t begin, int64_t words_count, const uint32_t* words) {
    C* at = x + begin;
    ORTM_SIMD
    for (int64_t i = 0; i < words_count; ++i) at[i] *= kept(words[i]);
  });
}

/// x = exp(x - most) * inverse and d = x (d - delta), on whole vectors: both rows have room.
inline void probabilities_and_gradient(int64_t count, RowStatistics<float> s, float delta, float* x,
                                       float* d) {
  const FloatVec most(s.most), inverse(s.inverse), deltas(delta);
  for (int64_t i = 0; i < count; i += FloatVec::kCount) {
    const FloatVec p = fast_exp(FloatVec::load(x + i) - most) * inverse;
    p.store(x + i);
    (p * (FloatVec::load(d + i) - deltas)).store(d + i);
  }
}
inline void probabilities_and_gradient(int64_t count, RowStatistics<double> s, double delta,
                                       double* x, double* d) {
  for (int64_t i = 0; i < count; ++i) {
    x[i] = std::exp(x[i] - s.most) * s.inverse;
    d[i] = x[i] * (d[i] - delta);
  }
}

inline void probabilities(int64_t count, RowStatistics<float> s, float* x) {
  const FloatVec most(s.most), inverse(s.inverse);
  map_vectors([&](FloatVec v) { return fast_exp(v - most) * inverse; }, count, x, x);
}
inline void probabilities(int64_t count, RowStatistics<double> s, double* x) {
  for (int64_t i = 0; i < count; ++i) x[i] = std::exp(x[i] - s.most) * s.inverse;
}

/// Backward's row with the delta of its own numbers.
template <class C>
void gradient_row(const AttentionSettings& s, const RowWords& random, RowStatistics<C> statistics,
                  int64_t count, C* x, C* d) {
  probabilities(count, statistics, x);
  if (s.drops) drop_row(s, random, count, d);
  const auto delta = static_cast<C>(row_sum(
      count, [](auto a, auto b) { return a * b; }, static_cast<const C*>(x),
      static_cast<const C*>(d)));
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) d[i] = x[i] * (d[i] - delta);
  if (s.drops) drop_row(s, random, count, x);
}

/// Backward's row: scores and dp to kept probabilities and the gradient of the scores.
template <class C>
void gradient_row(const AttentionSettings& s, const RowWords& random, RowStatistics<C> statistics,
                  C delta, int64_t count, C* x, C* d) {
  if (!s.drops) {
    probabilities_and_gradient(count, statistics, delta, x, d);
    return;
  }
  probabilities(count, statistics, x);
  const Kept<C> kept(s);
  random.for_each_chunk(count, [&](int64_t begin, int64_t words_count, const uint32_t* words) {
    C *p = x + begin, *ds = d + begin;
    ORTM_SIMD
    for (int64_t i = 0; i < words_count; ++i) {
      const C by = kept(words[i]);
      ds[i] = p[i] * (ds[i] * by - delta);
      p[i] *= by;
    }
  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
