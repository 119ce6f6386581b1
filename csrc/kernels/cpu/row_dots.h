// Products of a few rows with the rows of a matrix that is read as it lies: packing it would take
// longer. A block of the matrix stays in the first-level cache for all rows. Every element is
// summed alike, whatever rows are computed together.
#pragma once

#include "kernels/cpu/panel_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// sums[j] = the parts, lane by lane, of left . right[j], a row for each lane.
inline void add_row_dots(const float* left, const float* right, int64_t stride, int64_t inner,
                         FloatVec (&sums)[FloatVec::kCount]) {
  constexpr int64_t kCount = FloatVec::kCount;
  ORTM_UNROLL
  for (int64_t j = 0; j < kCount; ++j) sums[j] = FloatVec(0.0f);
  int64_t k = 0;
  for (; k + 2 * kCount <= inner; k += 2 * kCount) {
    const FloatVec first = FloatVec::load(left + k), second = FloatVec::load(left + k + kCount);
    ORTM_UNROLL
    for (int64_t j = 0; j < kCount; ++j) {
      const float* row = right + j * stride + k;
      sums[j] = multiply_add(first, FloatVec::load(row), sums[j]);
      sums[j] = multiply_add(second, FloatVec::load(row + kCount), sums[j]);
    }
  }
  for (; k < inner; k += kCount) {
    const int64_t count = std::min(kCount, inner - k);
    const FloatVec factor = FloatVec::load(left + k, count);
    ORTM_UNROLL
    for (int64_t j = 0; j < kCount; ++j)
      sums[j] = multiply_add(factor, FloatVec::load(right + j * stride + k, count), sums[j]);
  }
}

inline float row_dot(const float* left, const float* right, int64_t inner) {
  constexpr int64_t kCount = FloatVec::kCount;
  FloatVec sums(0.0f);
  for (int64_t k = 0; k < inner; k += kCount) {
    const int64_t count = std::min(kCount, inner - k);
    sums = multiply_add(FloatVec::load(left + k, count), FloatVec::load(right + k, count), sums);
  }
  alignas(64) float lanes[kCount];
  sums.store(lanes);
  float total = 0.0f;
  for (const float lane : lanes) total += lane;
  return total;
}

/// y [rows, columns] = left [rows, inner] times the transpose of right [columns, inner]; rows of y
/// lie `y_stride` apart.
inline void multiply_rows(const float* left, int64_t rows, const float* right, int64_t stride,
                          int64_t columns, int64_t inner, float* y, int64_t y_stride) {
  constexpr int64_t kCount = FloatVec::kCount;
  int64_t column = 0;
  for (; column + kCount <= columns; column += kCount)
    for (int64_t row = 0; row < rows; ++row) {
      FloatVec sums[kCount];
      add_row_dots(left + row * inner, right + column * stride, stride, inner, sums);
      transpose_square(sums);
      FloatVec total = sums[0];
      ORTM_UNROLL
      for (int64_t j = 1; j < kCount; ++j) total = total + sums[j];
      total.store(y + row * y_stride + column);
    }
  for (; column < columns; ++column)
    for (int64_t row = 0; row < rows; ++row)
      y[row * y_stride + column] = row_dot(left + row * inner, right + column * stride, inner);
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
