// What ScaledDotProductAttention does to a strip of scores between its matrix products, in place:
//   AttentionProbabilities   scores -> dropout(softmax(scale scores + mask))
//   AttentionScoresGrad      scores, dp -> the same, and the gradient of q k'
// with dp the gradient of the dropped probabilities. Both compute a row's probabilities by the same
// code, so backward finds forward's bits. A row that sees nothing gets zeros, as in torch's
// _safe_softmax. Operands: scores [heads, rows, columns], mask (rank 3, any strides, bool or
// floats), position (StripPosition's four numbers), dp. Bytes moved: the strip once, from cache.
#include "kernels/attention_rows.h"

#include <array>
#include <cstring>

#include "kernels/cpu/philox_words.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

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

template <class C>
void scale_row(C* x, int64_t count, C factor) {
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

/// Scores to probabilities; `seen` columns count, those behind them get zero.
template <class C>
void probabilities(const AttentionRowSettings& s, const MaskRow& mask, int64_t seen,
                   int64_t columns, C* x) {
  scale_row(x, seen, static_cast<C>(s.scale));
  if (mask.data) add_mask(mask, seen, x);
  const C most = seen > 0 ? row_max(seen, x) : -std::numeric_limits<C>::infinity();
  // row_max leaves NaN out, but the sum shows it: a row with one is NaN, as in torch.
  if (most == -std::numeric_limits<C>::infinity()) {
    const double sum = row_sum(
        seen, [](auto v) { return v; }, x);
    std::fill(x, x + columns, std::isnan(sum) ? static_cast<C>(sum) : C(0));
    return;
  }
  const double sum = row_exp(seen, x, most, x);
  scale_row(x, seen, static_cast<C>(1.0 / sum));
  std::fill(x + seen, x + columns, C(0));
}

template <class C>
void drop_kept(const AttentionRowSettings& s, const uint32_t* words, int64_t count, C* x) {
  const C kept = static_cast<C>(s.kept_scale);
  const auto least = static_cast<uint32_t>(s.threshold);
  const bool none = s.threshold >> 32;  // no 32-bit word reaches it
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) x[i] *= words[i] >= least && !none ? kept : C(0);
}

template <class C>
class Strip {
 public:
  explicit Strip(const KernelArgs& args)
      : s_(*static_cast<const AttentionRowSettings*>(args.prepared)),
        scores_(args.in[0]),
        mask_(args.in[1]),
        seed_(seed_of(args.context.seed)) {
    std::memcpy(&at_, args.in[2].data, sizeof(at_));
    rows_ = scores_.sizes[1];
    columns_ = scores_.sizes[2];
  }
  int64_t count() const { return scores_.sizes[0] * rows_; }
  int64_t columns() const { return columns_; }
  C* row(const TensorView& strip, int64_t i) const { return strip.as<C>() + i * columns_; }

  void undropped(int64_t i) const {
    const int64_t seen = seen_columns(at_, rows_, i, columns_, s_.causal);
    probabilities(s_, mask_row(i), seen, columns_, row(scores_, i));
  }
  /// Multiplies a row's elements by 1 / (1 - ratio) if they are kept, by 0 otherwise.
  void drop(int64_t i, C* x) const {
    const int64_t first = first_score(at_, rows_, i);
    for_each_philox_chunk(seed_, s_.rng, static_cast<uint64_t>(first), columns_,
                          [&](int64_t begin, int64_t count, const uint32_t* words) {
                            drop_kept(s_, words, count, x + begin);
                          });
  }
  C scale() const { return static_cast<C>(s_.scale); }

 private:
  MaskRow mask_row(int64_t i) const {
    if (!mask_.data) return {};
    const int64_t offset = i / rows_ * mask_.strides[0] + i % rows_ * mask_.strides[1];
    return {mask_.as<char>() + offset * static_cast<int64_t>(size_of(mask_.dtype)), mask_.dtype,
            mask_.strides[2]};
  }

  const AttentionRowSettings& s_;
  const TensorView& scores_;
  const TensorView& mask_;
  uint64_t seed_;
  StripPosition at_;
  int64_t rows_ = 0, columns_ = 0;
};

/// body(i) for every row of the strip.
template <class C, class Body>
void for_each_row(const KernelArgs& args, const Strip<C>& strip, const Body& body) {
  parallel_ranges(args.context, strip.count(), grain_for(strip.columns()),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i) body(i);
                  });
}

template <class C>
void write_probabilities(const KernelArgs& args) {
  const Strip<C> strip(args);
  for_each_row(args, strip, [&](int64_t i) {
    strip.undropped(i);
    strip.drop(i, strip.row(args.out[0], i));
  });
}

/// ds = scale p (kept dp - sum p kept dp); the probabilities are dropped on the way.
template <class C>
void write_gradient(const KernelArgs& args) {
  const Strip<C> strip(args);
  const int64_t columns = strip.columns();
  const C scale = strip.scale();
  for_each_row(args, strip, [&](int64_t i) {
    strip.undropped(i);
    C *p = strip.row(args.out[0], i), *ds = strip.row(args.out[1], i);
    strip.drop(i, ds);
    const double dot = row_sum(
        columns, [](auto a, auto b) { return a * b; }, p, ds);
    const C sum = static_cast<C>(dot);
    ORTM_SIMD
    for (int64_t j = 0; j < columns; ++j) ds[j] = score_gradient(p[j], ds[j], sum, scale);
    strip.drop(i, p);
  });
}

template <class F>
void dispatch_wide(DType dtype, const F& f) {
  if (dtype == DType::Float64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

void run_probabilities(const KernelArgs& args) {
  dispatch_wide(args.in[0].dtype, [&]<class C> { write_probabilities<C>(args); });
}
void run_gradient(const KernelArgs& args) {
  dispatch_wide(args.in[0].dtype, [&]<class C> { write_gradient<C>(args); });
}

REGISTER_CPU_KERNEL({.op = "AttentionProbabilities",
                     .name = "attention_probabilities_cpu",
                     .dtypes = kFloats,
                     .run = run_probabilities,
                     .prepare = prepare_attention_rows});
REGISTER_CPU_KERNEL({.op = "AttentionScoresGrad",
                     .name = "attention_scores_grad_cpu",
                     .dtypes = kFloats,
                     .run = run_gradient,
                     .prepare = prepare_attention_rows});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
