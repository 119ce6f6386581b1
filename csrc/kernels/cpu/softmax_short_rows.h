// Softmax and its relatives over rows of at most kShortRow floats, sixteen at a time.
#pragma once

#include "kernels/cpu/short_rows.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// exp(x - shift).
inline RowLanes exp_of_rows(const RowLanes& x, const RowLanes& shift) {
  return map_rows([](FloatVec v, FloatVec by) { return fast_exp(v - by); }, x, shift);
}

/// The largest element of each row, not counting NaN; -infinity if there is none.
inline RowLanes largest_of_rows(const RowColumns& x, int64_t n) {
  RowLanes most(-std::numeric_limits<float>::infinity());
  for (int64_t j = 0; j < n; ++j) most = larger(x[j], most);
  return most;
}

// run(operands..., out, rows, n): at most kRowsTogether rows of n <= kLongest elements each.
template <class T>
struct SoftmaxShortRows {
  static constexpr int64_t kLongest = kShortRow;
  static void run(const T* x, const T*, T* y, int64_t rows, int64_t n) {
    RowColumns columns(rows, n);
    columns.load(x);
    const RowLanes max = largest_of_rows(columns, n);
    RowDoubles sum(0.0);
    for (int64_t j = 0; j < n; ++j) {
      const RowLanes power = exp_of_rows(columns[j], max);
      columns.set(j, power);
      sum = sum + RowDoubles(power);
    }
    const RowLanes factor =
        map_doubles([](DoubleVec s) { return DoubleVec(1.0) / s; }, sum).rounded();
    for (int64_t j = 0; j < n; ++j) columns.set(j, columns[j] * factor);
    columns.store(y);
  }
};

template <class T>
struct LogSoftmaxShortRows {
  static constexpr int64_t kLongest = kShortRow;
  static void run(const T* x, const T*, T* y, int64_t rows, int64_t n) {
    RowColumns columns(rows, n);
    columns.load(x);
    const RowLanes max = largest_of_rows(columns, n);
    RowDoubles sum(0.0);
    for (int64_t j = 0; j < n; ++j) sum = sum + RowDoubles(exp_of_rows(columns[j], max));
    double sums[kRowsTogether];
    sum.store(sums);
    float logs[kRowsTogether] = {};
    for (int64_t row = 0; row < rows; ++row) logs[row] = static_cast<float>(std::log(sums[row]));
    const RowLanes log_sum = RowLanes::load(logs);
    for (int64_t j = 0; j < n; ++j) columns.set(j, columns[j] - max - log_sum);
    columns.store(y);
  }
};

template <class T>
struct SoftmaxGradShortRows {
  static constexpr int64_t kLongest = kShortLightRow;
  static void run(const T* dy, const T* y, T* dx, int64_t rows, int64_t n) {
    RowColumns gradients(rows, n), columns(rows, n);
    gradients.load(dy);
    columns.load(y);
    RowDoubles dot(0.0);
    for (int64_t j = 0; j < n; ++j) dot = dot + RowDoubles(gradients[j] * columns[j]);
    const RowLanes sum = dot.rounded();
    for (int64_t j = 0; j < n; ++j) gradients.set(j, columns[j] * (gradients[j] - sum));
    gradients.store(dx);
  }
};

template <class T>
struct LogSoftmaxGradShortRows {
  static constexpr int64_t kLongest = kShortLightRow;
  static void run(const T* dy, const T* y, T* dx, int64_t rows, int64_t n) {
    RowColumns gradients(rows, n), columns(rows, n);
    gradients.load(dy);
    columns.load(y);
    RowDoubles total(0.0);
    for (int64_t j = 0; j < n; ++j) total = total + RowDoubles(gradients[j]);
    const RowLanes sum = total.rounded(), zero(0.0f);
    for (int64_t j = 0; j < n; ++j)
      gradients.set(j, gradients[j] - exp_of_rows(columns[j], zero) * sum);
    gradients.store(dx);
  }
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
