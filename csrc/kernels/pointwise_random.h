// Dropout and its gradient, one function: y[i] = keep(i) ? x[i] / (1 - ratio) : 0, with keep(i)
// drawn by Philox from the element's logical index (kernels/philox.h), so that no mask is stored.
#pragma once

#include "kernels/philox.h"
#include "kernels/pointwise_row.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace formulas {

struct Dropout {
  static void configure(const NodeFacts& node, MicroParams& p) {
    const double ratio = node.attrs.number("ratio");
    p.number[0] = dropout_scale(ratio);
    p.word[0] = dropout_threshold(ratio);
    p.word[1] = static_cast<uint64_t>(node.attrs.integer("rng"));
  }
  ORTM_HD explicit Dropout(const MicroParams& p)
      : scale(p.number[0]), threshold(p.word[0]), rng(p.word[1]) {}
  /// `word` is the element's random word.
  template <class T>
  ORTM_HD T operator()(T x, uint32_t word) const {
    const T scaled = x * static_cast<T>(scale);
    return word >= threshold ? scaled : T(0);
  }
  double scale;
  uint64_t threshold, rng;
};

}  // namespace formulas
}  // namespace ORTM_ISA
}  // namespace ortmodule

#define ORTM_RANDOM_OPS(ROW)                        \
  ORTM_FLOAT_ROWS(ROW, "Dropout", dropout, Dropout) \
  ORTM_FLOAT_ROWS(ROW, "DropoutGrad", dropout, Dropout)
