// What is drawn by Philox from an element's logical index (kernels/philox.h), so that it can be
// drawn again: dropout and its gradient, one function, y[i] = keep(i) ? x[i] / (1 - ratio) : 0, and
// uniform numbers of [0, 1).
#pragma once

#include <cmath>

#include "kernels/philox.h"
#include "kernels/pointwise_row.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace formulas {

struct Dropout {
  static constexpr bool kIsRandom = true;
  static void configure(const auto& node, MicroParams& p) {
    const double ratio = node.attrs.number("ratio");
    p.number[0] = dropout_scale(ratio);
    p.word[0] = static_cast<uint64_t>(node.attrs.integer("rng"));
    p.word[1] = dropout_threshold(ratio);
  }
  ORTM_HD explicit Dropout(const MicroParams& p)
      : scale(p.number[0]), threshold(p.word[1]), rng(p.word[0]) {}
  /// `word` is the element's random word.
  template <class T>
  ORTM_HD T operator()(T x, uint32_t word) const {
    const T scaled = x * static_cast<T>(scale);
    return word >= threshold ? scaled : T(0);
  }
  double scale;
  uint64_t threshold, rng;
};

/// As many bits as the type's multiples of its smallest step have in [0, 1). Those of float64 come
/// from two words: element i's are words 2 i and 2 i + 1 of the stream.
struct RandomUniform {
  static constexpr bool kIsRandom = true;
  static void configure(const auto& node, MicroParams& p) {
    const DType dtype = node.output_dtypes.at(0);
    const int bits = dtype == DType::Float32 ? 24 : dtype == DType::Float16 ? 11 : 8;
    p.word[0] = static_cast<uint64_t>(node.attrs.integer("rng")) +
                (static_cast<uint64_t>(node.attrs.integer("part", 0)) << 56);
    p.word[1] = static_cast<uint64_t>(32 - bits);
    p.number[0] = std::exp2(-bits);
  }
  ORTM_HD explicit RandomUniform(const MicroParams& p)
      : rng(p.word[0]), shift(static_cast<uint32_t>(p.word[1])), step(p.number[0]) {}
  template <class T>
  static constexpr int kWords = sizeof(T) / 4;
  ORTM_HD float operator()(uint32_t word) const {
    return static_cast<float>(static_cast<int32_t>(word >> shift)) * static_cast<float>(step);
  }
  ORTM_HD double operator()(uint32_t high, uint32_t low) const {
    const uint64_t bits = (static_cast<uint64_t>(high) << 21) | (low >> 11);
    return static_cast<double>(static_cast<int64_t>(bits)) * 0x1p-53;
  }
  uint64_t rng;
  uint32_t shift;
  double step;
};

}  // namespace formulas
}  // namespace ORTM_ISA
}  // namespace ortmodule

#define ORTM_RANDOM_OPS(ROW)                            \
  ORTM_FLOAT_ROWS(ROW, "Dropout", dropout, Dropout)     \
  ORTM_FLOAT_ROWS(ROW, "DropoutGrad", dropout, Dropout) \
  ORTM_FLOAT_ROWS(ROW, "RandomUniform", uniform, RandomUniform)
