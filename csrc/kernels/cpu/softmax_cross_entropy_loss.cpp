// SoftmaxCrossEntropyLoss of scores [N, C, ...] and labels [N, ...], with weights w [C] (or 1) and
// label smoothing s, per row:
//   lse = log sum exp(scores),
//   loss = (1 - s) w[label] (lse - scores[label]) + s / C sum_c w[c] (lse - scores[c])
// and 0 where label == ignore_index; the mean divides by the sum of w[label] of the rows that
// count. Gradient: with p = exp(scores - lse), g = dloss or dloss / divisor, W = sum w,
//   dscores = g ((1 - s) w[label] (p - onehot) + s / C (W p - w))
// Method: one pass over a row, with a running maximum; where classes are not last, passes over a
// strip of neighbouring columns. Row losses in double, added up in order.
// Bytes moved: scores once (forward); scores and dscores once (gradient).
#include "kernels/softmax_cross_entropy_loss.h"

#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

// Labels and weights whatever their type.
struct Targets {
  const TensorView& labels;
  const TensorView& weights;
  int64_t classes, ignore_index;

  /// The label of a row, or -1 if the row does not count.
  int64_t label(int64_t row) const {
    const int64_t label =
        labels.dtype == DType::Int64 ? labels.as<int64_t>()[row] : labels.as<int32_t>()[row];
    if (label == ignore_index) return -1;
    if (label < 0 || label >= classes)
      throw IndexOutOfRange(str("[SoftmaxCrossEntropyLoss] labels must lie in [0, ", classes,
                                ") or be ", ignore_index, ", but found ", label, " at position ",
                                row));
    return label;
  }
  double weight(int64_t c) const {
    if (!weights.data) return 1;
    double value = 0;
    dispatch_float(weights.dtype,
                   [&]<class T> { value = static_cast<double>(computed(weights.as<T>()[c])); });
    return value;
  }
  /// The weights of classes [at, at + count), which must exist.
  template <class C>
  void read_weights(int64_t at, int64_t count, C* out) const {
    dispatch_float(weights.dtype, [&]<class T> {
      const T* values = weights.as<T>() + at;
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<C>(computed(values[i]));
    });
  }
  double weight_sum() const {
    if (!weights.data) return static_cast<double>(classes);
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += weight(c);
    return sum;
  }
  /// What the mean divides by.
  double divisor(int64_t rows) const {
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t c = label(row);
      if (c >= 0) sum += weight(c);
    }
    return sum;
  }
};

struct RowResult {
  double log_sum_exp;
  double weighted_sum;  // sum_c w[c] scores[c], only if asked for
};

template <class T>
RowResult scan_row(const T* scores, const Targets& targets, bool wants_sum) {
  using C = ComputeOf<T>;
  C buffer[kRowChunk], weights[kRowChunk];
  const C least = -std::numeric_limits<C>::infinity();
  C max = least;
  double sum = 0, weighted = 0;
  bool nan = false;
  for_each_chunk(targets.classes, [&](int64_t at, int64_t count) {
    const C* x = computed_row(scores + at, count, buffer);
    const C piece_max = row_max(count, x);
    if (piece_max > max) {
      sum *= std::exp(static_cast<double>(max) - static_cast<double>(piece_max));
      max = piece_max;
    }
    if (max == least) {  // nothing but -infinity so far, or NaN
      for (int64_t i = 0; i < count; ++i) nan = nan || x[i] != x[i];
    } else {
      sum += row_sum_exp(count, x, max);
    }
    if (!wants_sum) return;
    if (targets.weights.data) {
      targets.read_weights(at, count, weights);
      weighted += row_sum(
          count, [](auto v, auto w) { return v * w; }, x, weights);
    } else {
      weighted += row_sum(
          count, [](auto v) { return v; }, x);
    }
  });
  if (nan) sum = std::numeric_limits<double>::quiet_NaN();
  return {static_cast<double>(max) + std::log(sum), weighted};
}

// --- strips of neighbouring columns --------------------------------------------------------------
constexpr int64_t kStrip = 64;

// out = exp(x - shift), column by column.
void exp_columns(int64_t columns, const float* x, const float* shift, float* out) {
  map_vectors([](FloatVec a, FloatVec b) { return fast_exp(a - b); }, columns, out, x, shift);
}
void exp_columns(int64_t columns, const double* x, const double* shift, double* out) {
  for (int64_t c = 0; c < columns; ++c) out[c] = std::exp(x[c] - shift[c]);
}

// Results of columns whose classes are `stride` apart.
template <class T>
void scan_strip(const T* scores, int64_t stride, int64_t columns, const Targets& targets,
                bool wants_sum, RowResult* results) {
  using C = ComputeOf<T>;
  C buffer[kStrip], exps[kStrip], max[kStrip], shift[kStrip];
  double sum[kStrip] = {}, weighted[kStrip] = {};
  const C least = -std::numeric_limits<C>::infinity();
  std::fill(max, max + kStrip, least);
  for (int64_t k = 0; k < targets.classes; ++k) {
    const C* x = computed_row(scores + k * stride, columns, buffer);
    ORTM_SIMD
    for (int64_t c = 0; c < columns; ++c) max[c] = x[c] > max[c] ? x[c] : max[c];
  }
  // A column of nothing but -infinity has a sum of 0, one with NaN a sum of NaN.
  for (int64_t c = 0; c < columns; ++c) shift[c] = max[c] == least ? C(0) : max[c];
  for (int64_t k = 0; k < targets.classes; ++k) {
    const C* x = computed_row(scores + k * stride, columns, buffer);
    exp_columns(columns, x, shift, exps);
    ORTM_SIMD
    for (int64_t c = 0; c < columns; ++c) sum[c] += static_cast<double>(exps[c]);
    if (!wants_sum) continue;
    const double weight = targets.weight(k);
    ORTM_SIMD
    for (int64_t c = 0; c < columns; ++c) weighted[c] += weight * static_cast<double>(x[c]);
  }
  for (int64_t c = 0; c < columns; ++c)
    results[c] = {static_cast<double>(max[c]) + std::log(sum[c]), weighted[c]};
}

// body(first row, columns) for every strip.
template <class Body>
void for_each_strip(const KernelContext& context, const LossShape& shape, const Body& body) {
  const int64_t strips = ceil_div(shape.inner, kStrip);
  parallel_ranges(context, shape.batch * strips, grain_for(kStrip * shape.classes),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t item = begin; item < end; ++item) {
                      const int64_t column = item % strips * kStrip;
                      body(item / strips * shape.inner + column,
                           std::min(kStrip, shape.inner - column));
                    }
                  });
}

// --- loss ----------------------------------------------------------------------------------------
template <class T>
void store_element(const TensorView& view, int64_t i, double value) {
  view.as<T>()[i] = stored<T>(value);
}

size_t loss_workspace(const StepFacts& facts) {
  return static_cast<size_t>(element_count(facts.inputs[1].layout.sizes)) * sizeof(double);
}

template <class T>
void forward(const KernelArgs& args) {
  using C = ComputeOf<T>;
  const TensorView absent;
  const LossAttrs attrs(args.facts.node().attrs);
  const LossShape shape(args.in[0]);
  const Targets targets{args.in[1], args.in.size() > 2 ? args.in[2] : absent, shape.classes,
                        attrs.ignore_index};
  const bool smooth = attrs.smoothing > 0;
  const double weight_sum = smooth ? targets.weight_sum() : 0;
  double* losses = static_cast<double*>(args.workspace);
  C* log_sum_exp = args.out.size() > 1 ? args.out[1].as<C>() : nullptr;
  auto finish_row = [&](int64_t row, int64_t label, const RowResult& r) {
    if (log_sum_exp) log_sum_exp[row] = static_cast<C>(r.log_sum_exp);
    losses[row] = 0;
    if (label < 0) return;
    const T* scores = args.in[0].as<T>() + shape.offset(row);
    const double score = static_cast<double>(computed(scores[label * shape.inner]));
    losses[row] = label_loss(attrs.smoothing, targets.weight(label), r.log_sum_exp, score);
    if (smooth)
      losses[row] +=
          smoothing_loss(attrs.smoothing, shape.classes, weight_sum, r.log_sum_exp, r.weighted_sum);
  };
  const int64_t rows = shape.rows();
  if (shape.inner == 1) {
    parallel_ranges(args.context, rows, grain_for(shape.classes), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t label = targets.label(row);
        const T* scores = args.in[0].as<T>() + shape.offset(row);
        finish_row(row, label, scan_row(scores, targets, smooth && label >= 0));
      }
    });
  } else {
    for_each_strip(args.context, shape, [&](int64_t row, int64_t columns) {
      RowResult results[kStrip];
      const T* scores = args.in[0].as<T>() + shape.offset(row);
      scan_strip(scores, shape.inner, columns, targets, smooth, results);
      for (int64_t c = 0; c < columns; ++c) finish_row(row + c, targets.label(row + c), results[c]);
    });
  }
  if (attrs.none) {
    for (int64_t row = 0; row < rows; ++row) store_element<T>(args.out[0], row, losses[row]);
    return;
  }
  double total = 0;
  for (int64_t row = 0; row < rows; ++row) total += losses[row];
  store_element<T>(args.out[0], 0, attrs.mean ? total / targets.divisor(rows) : total);
}

// --- gradient ------------------------------------------------------------------------------------
// dscores of a row: factor p - share w, then the label's own part.
template <class C>
struct RowGradient {
  int64_t label = -1;  // the row does not count
  C log_sum_exp = 0;
  double label_part = 0, total = 0;  // total = label_part + share sum w
  C share = 0;
};

template <class T>
struct Backward {
  using C = ComputeOf<T>;
  // Whether p is kept in dscores between two passes.
  static constexpr bool kKeepsExp = std::is_same_v<T, C>;

  const KernelArgs& args;
  LossAttrs attrs;
  LossShape shape;
  Targets targets;
  double weight_sum, divisor;

  explicit Backward(const KernelArgs& a)
      : args(a),
        attrs(a.facts.node().attrs),
        shape(a.in[1]),
        targets{a.in[2], a.in[3], shape.classes, attrs.ignore_index},
        weight_sum(attrs.smoothing > 0 ? targets.weight_sum() : 0),
        divisor(attrs.mean ? targets.divisor(shape.rows()) : 1.0) {}

  double dloss(int64_t row) const {
    double value = 0;
    dispatch_float(args.in[0].dtype, [&]<class L> {
      value = static_cast<double>(computed(args.in[0].as<L>()[attrs.none ? row : 0]));
    });
    return value / divisor;
  }
  RowGradient<C> row_gradient(int64_t row) const {
    RowGradient<C> r;
    r.label = targets.label(row);
    r.log_sum_exp = args.in[4].as<C>()[row];
    if (r.label < 0) return r;
    const double g = dloss(row), share = g * attrs.smoothing / static_cast<double>(shape.classes);
    r.label_part = g * (1 - attrs.smoothing) * targets.weight(r.label);
    r.total = r.label_part + share * weight_sum;
    r.share = static_cast<C>(share);
    return r;
  }
  void run_row(int64_t row) const;
  void run_strip(int64_t row, int64_t columns) const;
  void subtract_weights(int64_t at, int64_t count, C share, C* out) const {
    if (!targets.weights.data) {
      for (int64_t i = 0; i < count; ++i) out[i] -= share;
      return;
    }
    C weights[kRowChunk];
    targets.read_weights(at, count, weights);
    for (int64_t i = 0; i < count; ++i) out[i] -= share * weights[i];
  }
};

template <class T>
void Backward<T>::run_row(int64_t row) const {
  const T* scores = args.in[1].as<T>() + shape.offset(row);
  T* dscores = args.out[0].as<T>() + shape.offset(row);
  const RowGradient<C> r = row_gradient(row);
  if (r.label < 0) return std::fill(dscores, dscores + shape.classes, T{});
  C buffer[kRowChunk];
  // The statistic is rounded, so that p sums to a little more or less than 1: where the label has
  // nearly all of it, that little would be the gradient.
  double sum = 1;
  if (kKeepsExp) {
    sum = 0;
    for_each_chunk(shape.classes, [&](int64_t at, int64_t count) {
      const C* x = computed_row(scores + at, count, buffer);
      sum += row_exp(count, x, r.log_sum_exp, writable_row(dscores + at, buffer));
    });
  }
  const C factor = static_cast<C>(r.total / sum);
  for_each_chunk(shape.classes, [&](int64_t at, int64_t count) {
    C* out = writable_row(dscores + at, buffer);
    if (!kKeepsExp) {
      const C* x = computed_row(scores + at, count, buffer);
      row_exp(count, x, r.log_sum_exp, out);
    }
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) out[i] *= factor;
    if (attrs.smoothing > 0) subtract_weights(at, count, r.share, out);
    if (r.label >= at && r.label < at + count) out[r.label - at] -= static_cast<C>(r.label_part);
    store_row(dscores + at, out, count);
  });
}

template <class T>
void Backward<T>::run_strip(int64_t row, int64_t columns) const {
  const int64_t stride = shape.inner;
  const T* scores = args.in[1].as<T>() + shape.offset(row);
  T* dscores = args.out[0].as<T>() + shape.offset(row);
  const C* log_sum_exp = args.in[4].as<C>() + row;
  C buffer[kStrip], factor[kStrip], share[kStrip], label_part[kStrip];
  int32_t label[kStrip];
  double sum[kStrip], total[kStrip];
  std::fill(sum, sum + kStrip, kKeepsExp ? 0.0 : 1.0);
  // First, since a strip of one class may share its storage with what it is computed from.
  for (int64_t c = 0; c < columns; ++c) {
    const RowGradient<C> r = row_gradient(row + c);
    label[c] = static_cast<int32_t>(r.label);
    total[c] = r.total;
    share[c] = r.share;
    label_part[c] = static_cast<C>(r.label_part);
  }
  for (int64_t k = 0; kKeepsExp && k < shape.classes; ++k) {  // as in run_row
    C* out = writable_row(dscores + k * stride, buffer);
    exp_columns(columns, computed_row(scores + k * stride, columns, buffer), log_sum_exp, out);
    ORTM_SIMD
    for (int64_t c = 0; c < columns; ++c) sum[c] += static_cast<double>(out[c]);
  }
  for (int64_t c = 0; c < columns; ++c) factor[c] = static_cast<C>(total[c] / sum[c]);
  for (int64_t k = 0; k < shape.classes; ++k) {
    C* out = writable_row(dscores + k * stride, buffer);
    if (!kKeepsExp)
      exp_columns(columns, computed_row(scores + k * stride, columns, buffer), log_sum_exp, out);
    const C weight = attrs.smoothing > 0 ? static_cast<C>(targets.weight(k)) : C(0);
    const int32_t own = static_cast<int32_t>(k);
    ORTM_SIMD
    for (int64_t c = 0; c < columns; ++c) {
      const C spread = out[c] * factor[c] - share[c] * weight;
      const C value = label[c] == own ? spread - label_part[c] : spread;
      out[c] = label[c] < 0 ? C(0) : value;
    }
    store_row(dscores + k * stride, out, columns);
  }
}

template <class T>
void backward(const KernelArgs& args) {
  const Backward<T> b(args);
  if (b.shape.inner > 1) {
    for_each_strip(args.context, b.shape,
                   [&](int64_t row, int64_t columns) { b.run_strip(row, columns); });
    return;
  }
  parallel_ranges(args.context, b.shape.rows(), grain_for(b.shape.classes),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t row = begin; row < end; ++row) b.run_row(row);
                  });
}

REGISTER_CPU_KERNEL({.op = "SoftmaxCrossEntropyLoss",
                     .name = "softmax_cross_entropy_loss_cpu",
                     .dtypes = kAllFloats,
                     .run =
                         [](const KernelArgs& args) {
                           dispatch_float(args.in[0].dtype, [&]<class T> { forward<T>(args); });
                         },
                     .unsupported = [](const StepFacts& f) { return labels_unsupported(f, 1); },
                     .workspace_bytes = loss_workspace});
REGISTER_CPU_KERNEL({.op = "SoftmaxCrossEntropyLossGrad",
                     .name = "softmax_cross_entropy_loss_grad_cpu",
                     .dtypes = kAllFloats,
                     .run =
                         [](const KernelArgs& args) {
                           dispatch_float(args.in[1].dtype, [&]<class T> { backward<T>(args); });
                         },
                     .unsupported = [](const StepFacts& f) { return labels_unsupported(f, 2); },
                     .inplace = true});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
