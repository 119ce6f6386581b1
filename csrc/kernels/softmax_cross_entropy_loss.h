// What the kernels of SoftmaxCrossEntropyLoss and its gradient share on all devices: attributes,
// addresses of rows and the formulas of a row (cpu/softmax_cross_entropy_loss.cpp says which).
#pragma once

#include <cstdint>

#include "base/layout.h"
#include "ir/attr.h"
#include "kernels/kernel.h"
#include "kernels/scalar_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

struct LossShape {
  int64_t batch = 1, classes = 1, inner = 1;
  int64_t batch_stride = 1;

  LossShape() = default;
  explicit LossShape(const Sizes& scores) : batch(scores[0]), classes(scores[1]) {
    for (size_t d = 2; d < scores.size(); ++d) inner *= scores[d];
    batch_stride = classes * inner;
  }
  /// Of the view, not of the facts: the loss head's last tile has fewer rows than they say, and its
  /// rows may lie apart.
  explicit LossShape(const TensorView& scores)
      : LossShape(Sizes(scores.sizes, scores.sizes + scores.rank)) {
    if (scores.rank == 2) batch_stride = scores.strides[0];
  }
  ORTM_HD int64_t rows() const { return batch * inner; }
  /// Offset of class 0 of a row; classes are `inner` elements apart.
  ORTM_HD int64_t offset(int64_t row) const { return row / inner * batch_stride + row % inner; }
};

struct LossAttrs {
  int64_t ignore_index = -100;
  double smoothing = 0;
  bool mean = true, none = false;

  LossAttrs() = default;
  explicit LossAttrs(const Attrs& attrs)
      : ignore_index(attrs.integer("ignore_index", -100)),
        smoothing(attrs.number("label_smoothing", 0.0)),
        mean(attrs.string("reduction", "mean") == "mean"),
        none(attrs.string("reduction", "mean") == "none") {}
};

/// (1 - s) w[label] (lse - scores[label]), the label's part of the loss of a row.
ORTM_HD double label_loss(double smoothing, double weight, double log_sum_exp, double score) {
  return (1 - smoothing) * weight * (log_sum_exp - score);
}
/// s / C sum_c w[c] (lse - scores[c]), with W = sum w and weighted = sum_c w[c] scores[c].
ORTM_HD double smoothing_loss(double smoothing, int64_t classes, double weight_sum,
                              double log_sum_exp, double weighted) {
  return smoothing / static_cast<double>(classes) * (weight_sum * log_sum_exp - weighted);
}

inline Reason labels_unsupported(const StepFacts& facts, size_t labels) {
  const DType dtype = facts.inputs[labels].dtype;
  if (dtype != DType::Int64 && dtype != DType::Int32) return "labels are not int64 or int32";
  return {};
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
