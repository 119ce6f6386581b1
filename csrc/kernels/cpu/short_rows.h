// Rows of a few floats, sixteen at a time. Method: they are transposed in registers, so that a
// vector holds one element of each of them; a sum or an extremum of every row then takes no work
// across lanes, and no vector is partly empty, as those of short rows would be. Sums are carried in
// double from the first element on, in order, so that a row gives the same bits beside any others,
// with any instruction set and number of threads.
#pragma once

#include <utility>

#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// The longest row that is worked on so, and the longest one where there is little to compute, as
/// in gradients: beyond, two transpositions cost more than what every row costs by itself.
inline constexpr int64_t kShortRow = 64;
inline constexpr int64_t kShortLightRow = 32;
inline constexpr int64_t kRowsTogether = 16;
inline bool is_short(int64_t n, int64_t longest = kShortRow) { return n > 0 && n <= longest; }

// --- one number per row --------------------------------------------------------------------------
struct RowLanes {
  static constexpr int kVectors = static_cast<int>(kRowsTogether / FloatVec::kCount);
  FloatVec v[kVectors];

  RowLanes() = default;
  explicit RowLanes(float x) {
    ORTM_UNROLL
    for (FloatVec& vector : v) vector = FloatVec(x);
  }
  /// The first `rows` of them, and 0.
  static RowLanes load(const float* from, int64_t rows) {
    float lanes[kRowsTogether] = {};
    std::copy(from, from + rows, lanes);
    return load(lanes);
  }
  static RowLanes load(const float* from) {
    RowLanes lanes;
    ORTM_UNROLL
    for (int k = 0; k < kVectors; ++k) lanes.v[k] = FloatVec::load(from + k * FloatVec::kCount);
    return lanes;
  }
  void store(float* to) const {
    ORTM_UNROLL
    for (int k = 0; k < kVectors; ++k) v[k].store(to + k * FloatVec::kCount);
  }
  void store(float* to, int64_t rows) const {
    float lanes[kRowsTogether];
    store(lanes);
    std::copy(lanes, lanes + rows, to);
  }
};

/// f of the vectors of each.
template <class F, class... Lanes>
inline RowLanes map_rows(const F& f, const Lanes&... lanes) {
  RowLanes result;
  ORTM_UNROLL
  for (int k = 0; k < RowLanes::kVectors; ++k) result.v[k] = f(lanes.v[k]...);
  return result;
}
inline RowLanes operator+(const RowLanes& a, const RowLanes& b) {
  return map_rows([](FloatVec x, FloatVec y) { return x + y; }, a, b);
}
inline RowLanes operator-(const RowLanes& a, const RowLanes& b) {
  return map_rows([](FloatVec x, FloatVec y) { return x - y; }, a, b);
}
inline RowLanes operator*(const RowLanes& a, const RowLanes& b) {
  return map_rows([](FloatVec x, FloatVec y) { return x * y; }, a, b);
}
inline RowLanes larger(const RowLanes& a, const RowLanes& b) {
  return map_rows([](FloatVec x, FloatVec y) { return larger(x, y); }, a, b);
}

/// The same in double.
struct RowDoubles {
  DoubleVec v[2 * RowLanes::kVectors];

  RowDoubles() = default;
  explicit RowDoubles(double x) {
    ORTM_UNROLL
    for (DoubleVec& vector : v) vector = DoubleVec(x);
  }
  explicit RowDoubles(const RowLanes& lanes) {
    ORTM_UNROLL
    for (int k = 0; k < RowLanes::kVectors; ++k) {
      const DoubleHalves halves(lanes.v[k]);
      for (int h = 0; h < 2; ++h) v[2 * k + h] = halves.half[h];
    }
  }
  RowLanes rounded() const {
    RowLanes lanes;
    ORTM_UNROLL
    for (int k = 0; k < RowLanes::kVectors; ++k) {
      DoubleHalves halves(lanes.v[k] = FloatVec(0.0f));
      for (int h = 0; h < 2; ++h) halves.half[h] = v[2 * k + h];
      lanes.v[k] = halves.rounded();
    }
    return lanes;
  }
  void store(double* to) const { std::memcpy(to, v, sizeof(v)); }
};

/// The sum of all of them.
inline float sum_of_rows(const RowLanes& lanes) {
  float parts[kRowsTogether];
  lanes.store(parts);
  for (int64_t width = kRowsTogether / 2; width > 0; width /= 2)
    for (int64_t k = 0; k < width; ++k) parts[k] += parts[k + width];
  return parts[0];
}

template <class F, class... Doubles>
inline RowDoubles map_doubles(const F& f, const Doubles&... doubles) {
  RowDoubles result;
  ORTM_UNROLL
  for (int k = 0; k < 2 * RowLanes::kVectors; ++k) result.v[k] = f(doubles.v[k]...);
  return result;
}
inline RowDoubles operator+(const RowDoubles& a, const RowDoubles& b) {
  return map_doubles([](DoubleVec x, DoubleVec y) { return x + y; }, a, b);
}
inline RowDoubles operator*(const RowDoubles& a, const RowDoubles& b) {
  return map_doubles([](DoubleVec x, DoubleVec y) { return x * y; }, a, b);
}

// --- transposition -------------------------------------------------------------------------------
// Swaps lanes k + distance of a with lanes k of b, where k has no bit of `distance`.
template <int distance, size_t... k>
inline void exchange(FloatLanes& a, FloatLanes& b, std::index_sequence<k...>) {
  constexpr int n = static_cast<int>(FloatVec::kCount), d = distance;
  const FloatLanes low = __builtin_shufflevector(
      a, b, ((static_cast<int>(k) & d) ? n + static_cast<int>(k) - d : static_cast<int>(k))...);
  const FloatLanes high = __builtin_shufflevector(
      a, b, ((static_cast<int>(k) & d) ? n + static_cast<int>(k) : static_cast<int>(k) + d)...);
  a = low;
  b = high;
}

/// Lane k of vector i becomes lane i of vector k.
template <int distance = static_cast<int>(FloatVec::kCount / 2)>
inline void transpose(FloatVec* v) {
  constexpr int n = static_cast<int>(FloatVec::kCount);
  ORTM_UNROLL
  for (int i = 0; i < n; ++i)
    if (!(i & distance))
      exchange<distance>(v[i].v, v[i + distance].v, std::make_index_sequence<n>());
  if constexpr (distance > 1) transpose<distance / 2>(v);
}

/// Elements of at most sixteen rows of at most kShortRow: column j holds element j of each, and 0
/// where there is no row.
class RowColumns {
 public:
  RowColumns(int64_t rows, int64_t n) : rows_(rows), n_(n) {}

  RowLanes operator[](int64_t j) const { return RowLanes::load(values_ + j * kRowsTogether); }
  void set(int64_t j, const RowLanes& lanes) { lanes.store(values_ + j * kRowsTogether); }

  /// From rows that follow one another in memory.
  void load(const float* x) {
    fetch_ahead<0>(x);
    for (int64_t first = 0; first < kRowsTogether; first += kWidth)
      for (int64_t j = 0; j < n_; j += kWidth) load_block(x, first, j);
  }
  template <class T>
  void load(const T* x) {
    float buffer[kShortRow * kRowsTogether];
    convert_row(x, rows_ * n_, buffer);
    load(static_cast<const float*>(buffer));
  }

  /// To rows that follow one another in memory; nothing behind them is touched. Blocks may write
  /// over the row below, whose turn follows; so what is left of a row comes before its other
  /// blocks.
  void store(float* y) const {
    fetch_ahead<1>(y);
    const int64_t whole = n_ / kWidth * kWidth;
    for (int64_t first = 0; first < rows_; first += kWidth) {
      if (whole < n_) store_block(y, first, whole);
      for (int64_t j = 0; j < whole; j += kWidth) store_block(y, first, j);
    }
  }
  template <class T>
  void store(T* y) const {
    float buffer[kShortRow * kRowsTogether];
    store(static_cast<float*>(buffer));
    store_row(y, buffer, rows_ * n_);
  }

 private:
  static constexpr int64_t kWidth = FloatVec::kCount;

  // The rows whose turn is next: processors foresee one line after the other, but not the steps of
  // a transposition. Of what lies behind the tensor nothing is read.
  template <int for_writing>
  void fetch_ahead(const float* rows) const {
    constexpr int64_t kLine = 64 / sizeof(float);
    const float* next = rows + rows_ * n_;
    for (int64_t at = 0; at < rows_ * n_; at += kLine) __builtin_prefetch(next + at, for_writing);
  }

  // Each way of loading has its own copy of what follows, or the vectors would meet in memory.
  template <class Load>
  void load_block(int64_t first, int64_t j, const Load& load) {
    FloatVec v[kWidth];
    ORTM_UNROLL
    for (int64_t i = 0; i < kWidth; ++i) v[i] = load(i);
    transpose(v);
    float* to = values_ + j * kRowsTogether + first;
    ORTM_UNROLL
    for (int64_t i = 0; i < kWidth; ++i) v[i].store(to + i * kRowsTogether);
  }
  void load_block(const float* x, int64_t first, int64_t j) {
    const float* from = x + first * n_ + j;
    const int64_t n = n_, count = std::min(kWidth, n - j), rows = rows_ - first;
    if (rows < kWidth) {
      load_block(first, j, [&](int64_t i) {
        return i >= rows         ? FloatVec(0.0f)
               : count == kWidth ? FloatVec::load(from + i * n)
                                 : FloatVec::load(from + i * n, count);
      });
    } else if (count == kWidth) {
      load_block(first, j, [&](int64_t i) { return FloatVec::load(from + i * n); });
    } else {
      load_block(first, j, [&](int64_t i) { return FloatVec::load(from + i * n, count); });
    }
  }

  void store_block(float* y, int64_t first, int64_t j) const {
    FloatVec v[kWidth];
    const float* from = values_ + j * kRowsTogether + first;
    ORTM_UNROLL
    for (int64_t i = 0; i < kWidth; ++i)  // what lies behind column n is written over
      v[i] = FloatVec::load(from + i * kRowsTogether);
    transpose(v);
    float* to = y + first * n_ + j;
    const int64_t n = n_, left = rows_ * n - first * n - j;  // elements from `to` on
    if ((kWidth - 1) * n + kWidth <= left) {
      ORTM_UNROLL
      for (int64_t i = 0; i < kWidth; ++i) v[i].store(to + i * n);
      return;
    }
    const int64_t count = std::min(kWidth, n - j);
    for (int64_t i = 0; i < kWidth && first + i < rows_; ++i) {
      if (i * n + kWidth <= left)
        v[i].store(to + i * n);
      else
        v[i].store(to + i * n, count);
    }
  }

  // Blocks are whole, so there are columns behind the last one.
  alignas(64) float values_[(kShortRow + kWidth) * kRowsTogether];
  int64_t rows_, n_;
};

/// body(first row, rows) for at most sixteen of `rows` rows at a time.
template <class Body>
inline void for_each_rows_together(int64_t rows, const Body& body) {
  for (int64_t row = 0; row < rows; row += kRowsTogether)
    body(row, std::min(kRowsTogether, rows - row));
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
