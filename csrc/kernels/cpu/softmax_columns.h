// Softmax and its relatives along an axis that is not the last one, for many neighbouring columns.
// Method: a vector holds one element of neighbouring columns, each of which has its own maximum and
// sum; a strip of columns is narrow enough to stay in the second-level cache over its passes. Float
// sums continue in double after 32 additions, so that they err as little as those over rows. What a
// column gives depends neither on its neighbours nor on how the columns are cut.
#pragma once

#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Columns that are worked on together: at least kLeastColumns, so that vectors are full, and at
/// most kMostColumns.
inline constexpr int64_t kLeastColumns = 16;
inline constexpr int64_t kMostColumns = 256;

/// How many columns of n elements are worked on together.
inline int64_t columns_together(int64_t n) {
  constexpr int64_t kStripElements = 32768;
  const int64_t columns = kStripElements / std::max<int64_t>(n, 1);
  return std::clamp(columns / kLeastColumns * kLeastColumns, kLeastColumns, kMostColumns);
}

/// `count` <= kMostColumns columns of n elements; neighbours in a column are `stride` apart.
struct ColumnStrip {
  int64_t n, stride, count;
};

/// A sum for each column, in C for at most 32 terms and then in double.
template <class C>
class ColumnTotals {
 public:
  explicit ColumnTotals(int64_t count) : count_(count) {
    std::fill(recent_, recent_ + count, C(0));
    std::fill(total_, total_ + count, 0.0);
  }
  /// term(c) is what is added to column c.
  template <class Term>
  void add(const Term& term) {
    ORTM_SIMD
    for (int64_t c = 0; c < count_; ++c) recent_[c] += term(c);
    if (++terms_ == 32) carry();
  }
  /// The sums; nothing is added behind this.
  const double* finish() {
    carry();
    return total_;
  }

 private:
  void carry() {
    ORTM_SIMD
    for (int64_t c = 0; c < count_; ++c) {
      total_[c] += static_cast<double>(recent_[c]);
      recent_[c] = C(0);
    }
    terms_ = 0;
  }
  C recent_[kMostColumns];
  double total_[kMostColumns];
  int64_t count_;
  int terms_ = 0;
};

/// The largest element of each column, not counting NaN; -infinity if there is none.
template <class T>
void column_max(const ColumnStrip& s, const T* x, ComputeOf<T>* max) {
  using C = ComputeOf<T>;
  C buffer[kMostColumns];
  std::fill(max, max + s.count, -std::numeric_limits<C>::infinity());
  for (int64_t j = 0; j < s.n; ++j) {
    const C* values = computed_row(x + j * s.stride, s.count, buffer);
    ORTM_SIMD
    for (int64_t c = 0; c < s.count; ++c) max[c] = values[c] > max[c] ? values[c] : max[c];
  }
}

/// out[c] = exp(x[c] - shift[c]).
inline void exp_of_columns(int64_t count, const float* x, const float* shift, float* out) {
  map_vectors([](FloatVec v, FloatVec by) { return fast_exp(v - by); }, count, out, x, shift);
}
inline void exp_of_columns(int64_t count, const double* x, const double* shift, double* out) {
  for (int64_t c = 0; c < count; ++c) out[c] = std::exp(x[c] - shift[c]);
}

template <class T>
struct SoftmaxColumns {
  using C = ComputeOf<T>;
  static void run(const ColumnStrip& s, const T* x, const T*, T* y) {
    C max[kMostColumns], factor[kMostColumns], buffer[kMostColumns];
    column_max(s, x, max);
    ColumnTotals<C> totals(s.count);
    for (int64_t j = 0; j < s.n; ++j) {
      const C* values = computed_row(x + j * s.stride, s.count, buffer);
      C* powers = writable_row(y + j * s.stride, buffer);
      exp_of_columns(s.count, values, max, powers);
      totals.add([&](int64_t c) { return powers[c]; });
    }
    const double* sums = totals.finish();
    for (int64_t c = 0; c < s.count; ++c) factor[c] = static_cast<C>(1.0 / sums[c]);
    for (int64_t j = 0; j < s.n; ++j) {
      C* out = writable_row(y + j * s.stride, buffer);
      // Powers in 16 bits would be rounded twice.
      if constexpr (kIsHalf<T>)
        exp_of_columns(s.count, computed_row(x + j * s.stride, s.count, buffer), max, out);
      ORTM_SIMD
      for (int64_t c = 0; c < s.count; ++c) out[c] *= factor[c];
      store_row(y + j * s.stride, out, s.count);
    }
  }
};

template <class T>
struct LogSoftmaxColumns {
  using C = ComputeOf<T>;
  static void run(const ColumnStrip& s, const T* x, const T*, T* y) {
    C max[kMostColumns], log_sum[kMostColumns], buffer[kMostColumns], powers[kMostColumns];
    column_max(s, x, max);
    ColumnTotals<C> totals(s.count);
    for (int64_t j = 0; j < s.n; ++j) {
      exp_of_columns(s.count, computed_row(x + j * s.stride, s.count, buffer), max, powers);
      totals.add([&](int64_t c) { return powers[c]; });
    }
    const double* sums = totals.finish();
    for (int64_t c = 0; c < s.count; ++c) log_sum[c] = static_cast<C>(std::log(sums[c]));
    for (int64_t j = 0; j < s.n; ++j) {
      const C* values = computed_row(x + j * s.stride, s.count, buffer);
      C* out = writable_row(y + j * s.stride, buffer);
      ORTM_SIMD
      for (int64_t c = 0; c < s.count; ++c) out[c] = values[c] - max[c] - log_sum[c];
      store_row(y + j * s.stride, out, s.count);
    }
  }
};

template <class T>
struct SoftmaxGradColumns {
  using C = ComputeOf<T>;
  static void run(const ColumnStrip& s, const T* dy, const T* y, T* dx) {
    C dot[kMostColumns], dy_buffer[kMostColumns], y_buffer[kMostColumns];
    ColumnTotals<C> totals(s.count);
    for (int64_t j = 0; j < s.n; ++j) {
      const C* a = computed_row(dy + j * s.stride, s.count, dy_buffer);
      const C* b = computed_row(y + j * s.stride, s.count, y_buffer);
      totals.add([&](int64_t c) { return a[c] * b[c]; });
    }
    const double* sums = totals.finish();
    for (int64_t c = 0; c < s.count; ++c) dot[c] = static_cast<C>(sums[c]);
    for (int64_t j = 0; j < s.n; ++j) {
      const C* a = computed_row(dy + j * s.stride, s.count, dy_buffer);
      const C* b = computed_row(y + j * s.stride, s.count, y_buffer);
      C* out = writable_row(dx + j * s.stride, dy_buffer);
      ORTM_SIMD
      for (int64_t c = 0; c < s.count; ++c) out[c] = b[c] * (a[c] - dot[c]);
      store_row(dx + j * s.stride, out, s.count);
    }
  }
};

template <class T>
struct LogSoftmaxGradColumns {
  using C = ComputeOf<T>;
  static void run(const ColumnStrip& s, const T* dy, const T* y, T* dx) {
    C sum[kMostColumns], dy_buffer[kMostColumns], power[kMostColumns];
    ColumnTotals<C> totals(s.count);
    for (int64_t j = 0; j < s.n; ++j) {
      const C* a = computed_row(dy + j * s.stride, s.count, dy_buffer);
      totals.add([&](int64_t c) { return a[c]; });
    }
    const double* sums = totals.finish();
    for (int64_t c = 0; c < s.count; ++c) sum[c] = static_cast<C>(sums[c]);
    for (int64_t j = 0; j < s.n; ++j) {
      const C* a = computed_row(dy + j * s.stride, s.count, dy_buffer);
      const C* values = computed_row(y + j * s.stride, s.count, power);
      row_exp(s.count, values, C(0), power);
      C* out = writable_row(dx + j * s.stride, dy_buffer);
      ORTM_SIMD
      for (int64_t c = 0; c < s.count; ++c) out[c] = a[c] - power[c] * sum[c];
      store_row(dx + j * s.stride, out, s.count);
    }
  }
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
