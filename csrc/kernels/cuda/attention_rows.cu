// AttentionProbabilities and AttentionScoresGrad as in cpu/attention_rows.cpp.
// Method: a row belongs to some lanes of a warp or to a block. A thread takes four scores at a
// time, those that share a block of random words, and keeps them in registers (rows of up to 8192
// scores; the rest of longer ones is computed again in each pass): maximum, sum, result. Both
// kernels compute probabilities by the same code with as many threads, so backward finds forward's
// bits; they agree with the CPU's to rounding, dropout exactly. Operand `position` lies in host
// memory and is read before the launch. Bytes moved: the strip once (forward); scores, dp and both
// results once (gradient), and what of the mask the rows need.
#include <cstring>
#include <limits>

#include "kernels/attention_rows.h"
#include "kernels/cuda/held_row.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/dtype_dispatch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kStep = 4;  // scores of a block of random words
constexpr int kHeldScores = 16;

struct Mask {
  const void* data = nullptr;
  DType dtype = DType::Undefined;
  int64_t head = 0, row = 0, column = 0;  // strides, in elements
};

template <class C>
struct Rows {
  const C *scores, *dp;
  C *probabilities, *dscores;
  Mask mask;
  AttentionRowSettings settings;
  StripPosition position;
  RunSeed seed;
  int64_t count, rows, columns;
  int lanes;
  bool vectors;
};

template <class C>
class Row {
 public:
  using Scores = C[kStep];
  static constexpr C kLeast = -std::numeric_limits<C>::infinity();

  __device__ Row(const Rows<C>& r, int64_t row)
      : r_(r),
        base_(row * r.columns),
        first_(first_score(r.position, r.rows, row)),
        seen_(seen_columns(r.position, r.rows, row, r.columns, r.settings.causal)),
        mask_at_(row / r.rows * r.mask.head + row % r.rows * r.mask.row),
        // Steps begin where blocks of random words do.
        skip_(r.settings.threshold ? static_cast<int>(first_ % kStep) : 0) {}

  /// Positions of steps: column + skip, whole steps.
  __device__ __forceinline__ int64_t positions() const {
    return (skip_ + r_.columns + kStep - 1) / kStep * kStep;
  }

  /// Whether a step's position k is a column.
  __device__ __forceinline__ bool exists(int64_t i, int k) const {
    const int64_t column = i - skip_ + k;
    return column >= 0 && column < r_.columns;
  }

  /// Scaled and masked scores, -infinity where nothing is seen.
  __device__ __forceinline__ void load_scores(int64_t i, C* x) const {
    read(r_.scores, i, x);
    const C scale = static_cast<C>(r_.settings.scale);
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      const int64_t column = i - skip_ + k;
      x[k] = column >= 0 && column < seen_ ? masked(x[k] * scale, column) : kLeast;
    }
  }
  __device__ __forceinline__ void read(const C* from, int64_t i, C* x) const {
    const int64_t column = i - skip_;
    const C* at = from + base_ + column;
    if (r_.vectors && skip_ == 0) {
#pragma unroll
      for (int k = 0; k < kStep; k += kWide) load_vector(*reinterpret_cast<Part*>(x + k), at + k);
      return;
    }
#pragma unroll
    for (int k = 0; k < kStep; ++k) x[k] = exists(i, k) ? at[k] : C(0);
  }
  __device__ __forceinline__ void write(C* to, int64_t i, const Scores& x) const {
    const int64_t column = i - skip_;
    C* at = to + base_ + column;
    if (r_.vectors && skip_ == 0) {
#pragma unroll
      for (int k = 0; k < kStep; k += kWide)
        store_vector(at + k, *reinterpret_cast<const Part*>(x + k));
      return;
    }
#pragma unroll
    for (int k = 0; k < kStep; ++k)
      if (exists(i, k)) at[k] = x[k];
  }
  /// What dropout multiplies the scores of a step by.
  __device__ __forceinline__ void dropout_factors(int64_t i, Scores& factors) const {
    const AttentionRowSettings& s = r_.settings;
    const C kept = static_cast<C>(s.kept_scale);
    if (s.threshold == 0) {
#pragma unroll
      for (int k = 0; k < kStep; ++k) factors[k] = kept;
      return;
    }
    const uint64_t block = static_cast<uint64_t>(first_ - skip_ + i) / kStep;
    const PhiloxBlock words = philox_block(seed_of(r_.seed), s.rng, block);
#pragma unroll
    for (int k = 0; k < kStep; ++k) factors[k] = words.word[k] >= s.threshold ? kept : C(0);
  }

 private:
  static constexpr int kWide = kVectorCount<C> < kStep ? kVectorCount<C> : kStep;
  using Part = C[kWide];

  __device__ __forceinline__ C masked(C x, int64_t column) const {
    const Mask& mask = r_.mask;
    if (!mask.data) return x;
    const int64_t at = mask_at_ + column * mask.column;
    switch (mask.dtype) {
      case DType::Bool: return static_cast<const bool*>(mask.data)[at] ? x : kLeast;
      case DType::Float32: return x + static_cast<C>(static_cast<const float*>(mask.data)[at]);
      case DType::Float64: return x + static_cast<C>(static_cast<const double*>(mask.data)[at]);
      case DType::Float16:
        return x + static_cast<C>(to_float(static_cast<const Float16*>(mask.data)[at]));
      default: return x + static_cast<C>(to_float(static_cast<const BFloat16*>(mask.data)[at]));
    }
  }

  const Rows<C>& r_;
  int64_t base_, first_, seen_, mask_at_;
  int skip_;
};

/// What makes probabilities of scores.
template <class C>
struct Softmax {
  C most = 0, inverse = 0;
  C lone = 0;  // the probability everywhere in a row that sees nothing, or NaN
  bool degenerate = false;

  /// exp(x - most); in a degenerate row 0, or NaN where the score is.
  __device__ __forceinline__ C numerator(C x) const {
    if (degenerate) return x != x ? x : C(0);
    return fast_exp(x - most);
  }
  __device__ __forceinline__ C probability(C numerator) const {
    return degenerate ? lone : numerator * inverse;
  }
};

// kValues: the scores of a step, in the gradient the kept dp behind them.
template <class C, int kValues, int kHeld>
__device__ __forceinline__ Softmax<C> numerators(const Row<C>& row,
                                                 HeldRow<C, kStep, kValues, kHeld>& held, int lanes,
                                                 C* scratch) {
  using Values = C[kValues];
  const auto load = [&](int64_t i, Values& x) { row.load_scores(i, x); };
  Softmax<C> s;
  C most = Row<C>::kLeast, sum = 0;
  // NaN is left out of the maximum and shows in the sum.
  held.first(load, [&](int64_t, Values& x) {
#pragma unroll
    for (int k = 0; k < kStep; ++k) most = x[k] > most ? x[k] : most;
  });
  s.most = row_reduce(most, MaxOp(), lanes, scratch);
  s.degenerate = s.most == Row<C>::kLeast;
  held.again(load, [&](int64_t, Values& x) {
#pragma unroll
    for (int k = 0; k < kStep; ++k) sum += x[k] = s.numerator(x[k]);
  });
  s.lone = row_reduce(sum, AddOp(), lanes, scratch);
  s.inverse = C(1) / s.lone;
  return s;
}

template <class C>
__global__ __launch_bounds__(kThreads) void attention_probabilities_cuda(ORTM_GRID_CONSTANT(Rows<C>)
                                                                             r) {
  ORTM_DYNAMIC_SHARED(C, scratch);
  using Values = C[kStep];
  const RowOfThread at(r.lanes, r.count);
  const Row<C> row(r, at.row);
  HeldRow<C, kStep, kStep, kHeldScores / kStep> held(at.exists ? row.positions() : 0, at.lane,
                                                     r.lanes);
  const Softmax<C> s = numerators(row, held, r.lanes, scratch);
  const auto load_numerators = [&](int64_t i, Values& x) {
    row.load_scores(i, x);
#pragma unroll
    for (int k = 0; k < kStep; ++k) x[k] = s.numerator(x[k]);
  };
  held.again(load_numerators, [&](int64_t i, Values& x) {
    Values factors;
    row.dropout_factors(i, factors);
#pragma unroll
    for (int k = 0; k < kStep; ++k) x[k] = s.probability(x[k]) * factors[k];
    row.write(r.probabilities, i, x);
  });
}

template <class C>
__global__ __launch_bounds__(kThreads) void attention_scores_grad_cuda(ORTM_GRID_CONSTANT(Rows<C>)
                                                                           r) {
  ORTM_DYNAMIC_SHARED(C, scratch);
  constexpr int kHeld = kHeldScores / kStep * static_cast<int>(sizeof(float)) / sizeof(C);
  using Values = C[2 * kStep];
  const RowOfThread at(r.lanes, r.count);
  const Row<C> row(r, at.row);
  HeldRow<C, kStep, 2 * kStep, kHeld> held(at.exists ? row.positions() : 0, at.lane, r.lanes);
  const Softmax<C> s = numerators(row, held, r.lanes, scratch);
  const auto load_numerators = [&](int64_t i, Values& x) {
    row.load_scores(i, x);
#pragma unroll
    for (int k = 0; k < kStep; ++k) x[k] = s.numerator(x[k]);
  };
  // From numerators to probabilities and kept dp; the dropped probabilities go to memory if the
  // scores, which may lie there, are no longer wanted.
  const auto finish = [&](int64_t i, Values& x, bool writes) {
    C factors[kStep], dropped[kStep];
    row.dropout_factors(i, factors);
    row.read(r.dp, i, x + kStep);
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      x[k] = s.probability(x[k]);
      x[kStep + k] *= factors[k];
      dropped[k] = x[k] * factors[k];
    }
    if (writes) row.write(r.probabilities, i, dropped);
  };
  C dot = 0;
  held.again(load_numerators, [&](int64_t i, Values& x) {
    finish(i, x, !held.is_beyond(i));
#pragma unroll
    for (int k = 0; k < kStep; ++k) dot += row.exists(i, k) ? x[k] * x[kStep + k] : C(0);
  });
  const C sum = row_reduce(dot, AddOp(), r.lanes, scratch);
  const C scale = static_cast<C>(r.settings.scale);
  const auto load_finished = [&](int64_t i, Values& x) {
    load_numerators(i, x);
    finish(i, x, true);
  };
  held.again(load_finished, [&](int64_t i, Values& x) {
    C gradient[kStep];
#pragma unroll
    for (int k = 0; k < kStep; ++k) gradient[k] = score_gradient(x[k], x[kStep + k], sum, scale);
    row.write(r.dscores, i, gradient);
  });
}

template <class C>
Rows<C> rows_of(const KernelArgs& args) {
  const TensorView &scores = args.in[0], &mask = args.in[1];
  Rows<C> r{.scores = scores.as<C>(),
            .dp = args.in.size() > 3 ? args.in[3].as<C>() : nullptr,
            .probabilities = args.out[0].as<C>(),
            .dscores = args.out.size() > 1 ? args.out[1].as<C>() : nullptr,
            .mask = {},
            .settings = *static_cast<const AttentionRowSettings*>(args.prepared),
            .position = {},
            .seed = args.context.seed,
            .count = scores.sizes[0] * scores.sizes[1],
            .rows = scores.sizes[1],
            .columns = scores.sizes[2],
            .lanes = 1,
            .vectors = false};
  std::memcpy(&r.position, args.in[2].data, sizeof(r.position));
  if (mask.data)
    r.mask = {mask.data, mask.dtype, mask.strides[0], mask.strides[1], mask.strides[2]};
  constexpr int kWide = std::min(kVectorCount<C>, kStep);
  r.vectors = r.columns % kStep == 0 && is_aligned<C, kWide>(r.scores) &&
              is_aligned<C, kWide>(r.dp) && is_aligned<C, kWide>(r.probabilities) &&
              is_aligned<C, kWide>(r.dscores);
  return r;
}

template <class C, bool kGradient>
void run_rows(const KernelArgs& args) {
  Rows<C> r = rows_of<C>(args);
  const RowGroups groups = row_groups(r.columns, kHeldScores, kThreads);
  r.lanes = groups.lanes;
  const dim3 grid = grid_of(r.columns ? blocks_for(r.count, groups.rows()) : 0);
  const auto block = static_cast<unsigned>(groups.threads);
  if constexpr (kGradient) {
    ORTM_LAUNCH(attention_scores_grad_cuda<C>, grid, block, sizeof(C) * kWarp, args.context, r);
  } else {
    ORTM_LAUNCH(attention_probabilities_cuda<C>, grid, block, sizeof(C) * kWarp, args.context, r);
  }
}

template <bool kGradient>
void run_attention_rows(const KernelArgs& args) {
  if (args.in[0].dtype == DType::Float64) {
    run_rows<double, kGradient>(args);
  } else {
    run_rows<float, kGradient>(args);
  }
}

REGISTER_KERNEL({.op = "AttentionProbabilities",
                 .name = "attention_probabilities_cuda",
                 .device = Device::CUDA,
                 .dtypes = kFloats,
                 .run = run_attention_rows<false>,
                 .prepare = prepare_attention_rows});
REGISTER_KERNEL({.op = "AttentionScoresGrad",
                 .name = "attention_scores_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kFloats,
                 .run = run_attention_rows<true>,
                 .prepare = prepare_attention_rows});

}  // namespace
}  // namespace ortmodule::cuda
