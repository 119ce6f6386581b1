// SoftmaxCrossEntropyLoss of scores [N, C, ...] and labels [N, ...], with weights w [C] (or 1) and
// label smoothing s, per row:
//   lse = log sum exp(scores),
//   loss = (1 - s) w[label] (lse - scores[label]) + s / C sum_c w[c] (lse - scores[c])
// and 0 where label == ignore_index; the mean divides by the sum of w[label] of the rows that
// count. Gradient: with p = exp(scores - lse), g = dloss or dloss / divisor, W = sum w,
//   dscores = g ((1 - s) w[label] (p - onehot) + s / C (W p - w))
// Method: one pass over a row, with a running maximum; row losses in double, added up in order.
// Bytes moved: scores once (forward); scores and dscores once (gradient).
#include "kernels/softmax_cross_entropy_loss.h"

#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

// Labels and weights whatever their type; the weights are few, so they are read element by element.
struct Targets {
  const TensorView& labels;
  const TensorView& weights;
  int64_t classes, ignore_index;

  /// The label of a row, or -1 if the row does not count.
  int64_t label(int64_t row) const {
    const int64_t label =
        labels.dtype == DType::Int64 ? labels.as<int64_t>()[row] : labels.as<int32_t>()[row];
    if (label == ignore_index) return -1;
    ORTM_CHECK(label >= 0 && label < classes, "[SoftmaxCrossEntropyLoss] labels must lie in [0, ",
               classes, ") or be ", ignore_index, ", but found ", label, " at position ", row);
    return label;
  }
  double weight(int64_t c) const {
    if (!weights.data) return 1;
    double value = 0;
    dispatch_float(weights.dtype,
                   [&]<class T> { value = static_cast<double>(computed(weights.as<T>()[c])); });
    return value;
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

// A piece of a row in the computation type, wherever its classes lie.
template <class T>
const ComputeOf<T>* row_piece(const T* from, int64_t count, int64_t stride, ComputeOf<T>* buffer) {
  if (stride == 1) return computed_row(from, count, buffer);
  for (int64_t i = 0; i < count; ++i) buffer[i] = computed(from[i * stride]);
  return buffer;
}

struct RowResult {
  double log_sum_exp;
  double weighted_sum;  // sum_c w[c] scores[c], only if asked for
};

template <class T>
RowResult scan_row(const T* scores, int64_t stride, const Targets& targets, bool wants_sum) {
  using C = ComputeOf<T>;
  C buffer[kRowChunk];
  const C least = -std::numeric_limits<C>::infinity();
  C max = least;
  double sum = 0, weighted = 0;
  bool nan = false;
  for_each_chunk(targets.classes, [&](int64_t at, int64_t count) {
    const C* x = row_piece(scores + at * stride, count, stride, buffer);
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
    if (wants_sum)
      for (int64_t i = 0; i < count; ++i)
        weighted += targets.weight(at + i) * static_cast<double>(x[i]);
  });
  if (nan) sum = std::numeric_limits<double>::quiet_NaN();
  return {static_cast<double>(max) + std::log(sum), weighted};
}

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
  const double weight_sum = attrs.smoothing > 0 ? targets.weight_sum() : 0;
  double* losses = static_cast<double*>(args.workspace);
  C* log_sum_exp = args.out.size() > 1 ? args.out[1].as<C>() : nullptr;
  auto run_row = [&](int64_t row) {
    const T* scores = args.in[0].as<T>() + shape.offset(row);
    const int64_t label = targets.label(row);
    const bool smooth = attrs.smoothing > 0 && label >= 0;
    const RowResult r = scan_row(scores, shape.inner, targets, smooth);
    if (log_sum_exp) log_sum_exp[row] = static_cast<C>(r.log_sum_exp);
    losses[row] = 0;
    if (label < 0) return;
    const double score = static_cast<double>(computed(scores[label * shape.inner]));
    losses[row] = label_loss(attrs.smoothing, targets.weight(label), r.log_sum_exp, score);
    if (smooth)
      losses[row] +=
          smoothing_loss(attrs.smoothing, shape.classes, weight_sum, r.log_sum_exp, r.weighted_sum);
  };
  const int64_t rows = shape.rows();
  parallel_ranges(args.context, rows, grain_for(shape.classes), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) run_row(row);
  });
  if (attrs.none) {
    for (int64_t row = 0; row < rows; ++row) store_element<T>(args.out[0], row, losses[row]);
    return;
  }
  double total = 0;
  for (int64_t row = 0; row < rows; ++row) total += losses[row];
  store_element<T>(args.out[0], 0, attrs.mean ? total / targets.divisor(rows) : total);
}

// --- gradient ------------------------------------------------------------------------------------
// dscores of one row: factor p + uniform - per-class term, then the label's own term.
template <class T>
void backward_row(const T* scores, const Targets& targets, int64_t stride, ComputeOf<T> log_sum_exp,
                  int64_t label, double g, double smoothing, double weight_sum, T* dscores) {
  using C = ComputeOf<T>;
  C buffer[kRowChunk];
  const double share = smoothing / static_cast<double>(targets.classes);
  const double label_part = g * (1 - smoothing) * targets.weight(label);
  // The statistic is rounded, so that p sums to a little more or less than 1: where the label has
  // nearly all of it, that little would be the gradient.
  double sum = 1;
  constexpr bool kKeepsExp = std::is_same_v<T, C>;
  if (kKeepsExp && stride == 1) {
    sum = 0;
    for_each_chunk(targets.classes, [&](int64_t at, int64_t count) {
      const C* x = row_piece(scores + at, count, 1, buffer);
      sum += row_exp(count, x, log_sum_exp, writable_row(dscores + at, buffer));
    });
  }
  const C factor = static_cast<C>((label_part + g * share * weight_sum) / sum);
  for_each_chunk(targets.classes, [&](int64_t at, int64_t count) {
    C* out = stride == 1 ? writable_row(dscores + at, buffer) : buffer;
    if (!kKeepsExp || stride != 1) {
      const C* x = row_piece(scores + at * stride, count, stride, buffer);
      row_exp(count, x, log_sum_exp, out);
    }
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) out[i] *= factor;
    if (smoothing > 0)
      for (int64_t i = 0; i < count; ++i)
        out[i] -= static_cast<C>(g * share * targets.weight(at + i));
    if (label >= at && label < at + count) out[label - at] -= static_cast<C>(label_part);
    if (stride == 1) {
      store_row(dscores + at, out, count);
    } else {
      for (int64_t i = 0; i < count; ++i) dscores[(at + i) * stride] = stored<T>(out[i]);
    }
  });
}

template <class T>
void backward(const KernelArgs& args) {
  using C = ComputeOf<T>;
  const LossAttrs attrs(args.facts.node().attrs);
  const LossShape shape(args.in[1]);
  const Targets targets{args.in[2], args.in[3], shape.classes, attrs.ignore_index};
  const double weight_sum = attrs.smoothing > 0 ? targets.weight_sum() : 0;
  const double divisor = attrs.mean ? targets.divisor(shape.rows()) : 1.0;
  auto dloss = [&](int64_t row) {
    double value = 0;
    dispatch_float(args.in[0].dtype, [&]<class L> {
      value = static_cast<double>(computed(args.in[0].as<L>()[attrs.none ? row : 0]));
    });
    return value / divisor;
  };
  auto run_row = [&](int64_t row) {
    const int64_t at = shape.offset(row), label = targets.label(row);
    T* dscores = args.out[0].as<T>() + at;
    if (label < 0) {
      for (int64_t c = 0; c < shape.classes; ++c) dscores[c * shape.inner] = T{};
      return;
    }
    backward_row(args.in[1].as<T>() + at, targets, shape.inner, args.in[4].as<C>()[row], label,
                 dloss(row), attrs.smoothing, weight_sum, dscores);
  };
  parallel_ranges(args.context, shape.rows(), grain_for(shape.classes),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t row = begin; row < end; ++row) run_row(row);
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
