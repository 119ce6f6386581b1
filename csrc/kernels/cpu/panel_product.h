// Products of matrices that fit into cache, for kernels that make, use and forget them on the way.
// The right factor is packed into panels of columns; every element of the product is one sum in
// the order of the inner dimension (in pieces of kInnerPiece), whatever tile it lies in.
// (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008, inner kernel.)
#pragma once

#include "kernels/cpu/double_vec.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {

template <class C>
using VecOf = std::conditional_t<std::is_same_v<C, double>, DoubleVec, FloatVec>;

/// Elements of a vector; of a panel's row, which is two vectors (the last panel may have one).
template <class C>
inline constexpr int64_t kVecCount = VecOf<C>::kCount;
template <class C>
inline constexpr int64_t kPanelWidth = 2 * kVecCount<C>;

/// Rows of a tile: with two vectors each it takes 12 of the 16 registers that AVX2 has.
inline constexpr int64_t kTileRows = 6;
/// A panel of so many rows stays in the first-level cache.
inline constexpr int64_t kInnerPiece = 256;

/// `count` rounded up to whole vectors.
template <class C>
constexpr int64_t whole_vectors(int64_t count) {
  return (count + kVecCount<C> - 1) / kVecCount<C> * kVecCount<C>;
}

/// A matrix in memory; strides in elements.
template <class T>
struct StridedMatrix {
  T* data = nullptr;
  int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 1;

  StridedMatrix transposed() const { return {data, columns, rows, column_stride, row_stride}; }
  StridedMatrix row_range(int64_t begin, int64_t count) const {
    return {data + begin * row_stride, count, columns, row_stride, column_stride};
  }
};

/// Elements of `rows` x `columns` in panels.
template <class C>
constexpr int64_t panel_elements(int64_t rows, int64_t columns) {
  return rows * whole_vectors<C>(columns);
}

/// Transposes a square of floats: `rows` of kCount lanes, halves of blocks exchanged at each size.
template <int kSize = 1>
inline void transpose_square(FloatVec (&rows)[FloatVec::kCount]) {
  constexpr int kCount = FloatVec::kCount;
  IntLanes low, high;  // lanes of two rows one after the other
  for (int lane = 0; lane < kCount; ++lane) {
    low[lane] = lane & kSize ? kCount + lane - kSize : lane;
    high[lane] = lane & kSize ? kCount + lane : lane + kSize;
  }
  for (int i = 0; i < kCount; ++i) {
    if (i & kSize) continue;
    const FloatLanes a = rows[i].v, b = rows[i + kSize].v;
    rows[i] = __builtin_shuffle(a, b, low);
    rows[i + kSize] = __builtin_shuffle(a, b, high);
  }
  if constexpr (2 * kSize < kCount) transpose_square<2 * kSize>(rows);
}

/// A whole panel of columns that lie `column_stride` apart, each dense.
template <class C, class T>
void transpose_panel(const T* from, int64_t column_stride, int64_t rows, C* to) {
  constexpr int64_t kWidth = kPanelWidth<C>;
  int64_t r = 0;
  if constexpr (std::is_same_v<T, float>) {
    constexpr int64_t kCount = FloatVec::kCount;
    for (; r + kCount <= rows; r += kCount)
      for (int64_t half = 0; half < kWidth; half += kCount) {
        FloatVec square[kCount];
        for (int64_t j = 0; j < kCount; ++j)
          square[j] = FloatVec::load(from + (half + j) * column_stride + r);
        transpose_square(square);
        for (int64_t i = 0; i < kCount; ++i) square[i].store(to + (r + i) * kWidth + half);
      }
  }
  for (; r < rows; ++r)
    for (int64_t j = 0; j < kWidth; ++j) to[r * kWidth + j] = computed(from[j * column_stride + r]);
}

/// Packs dense rows, row by row: each is read as one stream, a few rows ahead of its turn, where
/// panel by panel its parts would come from memory one page after the other.
template <class C, class T>
void pack_dense_rows(const StridedMatrix<const T>& x, C* to) {
  constexpr int64_t kAhead = 4, kPerLine = 64 / int64_t{sizeof(T)};
  for (int64_t r = 0; r < x.rows; ++r) {
    const T* from = x.data + r * x.row_stride;
    if (r + kAhead < x.rows)
      for (int64_t j = 0; j < x.columns; j += kPerLine)
        __builtin_prefetch(from + kAhead * x.row_stride + j, 0, 2);
    for (int64_t begin = 0; begin < x.columns; begin += kPanelWidth<C>) {
      const int64_t count = std::min(x.columns - begin, kPanelWidth<C>);
      const int64_t width = whole_vectors<C>(count);
      C* row = to + begin * x.rows + r * width;
      for (int64_t j = 0; j < count; ++j) row[j] = computed(from[begin + j]);
      for (int64_t j = count; j < width; ++j) row[j] = C(0);
    }
  }
}

/// Packs x into panels: those columns of a row that lie in one panel are neighbours, the rows of a
/// panel follow each other. Missing columns are zero.
template <class C, class T>
void pack_panels(const StridedMatrix<const T>& x, C* to) {
  if (x.column_stride == 1) return pack_dense_rows(x, to);
  for (int64_t begin = 0; begin < x.columns; begin += kPanelWidth<C>) {
    const int64_t count = std::min(x.columns - begin, kPanelWidth<C>);
    const int64_t width = whole_vectors<C>(count);
    const T* from = x.data + begin * x.column_stride;
    if (x.row_stride == 1 && count == kPanelWidth<C>) {
      transpose_panel(from, x.column_stride, x.rows, to);
    } else {
      for (int64_t r = 0; r < x.rows; ++r)
        for (int64_t j = 0; j < width; ++j)
          to[r * width + j] =
              j < count ? computed(from[r * x.row_stride + j * x.column_stride]) : C(0);
    }
    to += x.rows * width;
  }
}

/// Copies x to dense rows of `stride` elements, each multiplied by `factor`.
template <class C, class T>
void copy_rows(const StridedMatrix<const T>& x, C factor, C* to, int64_t stride) {
  for (int64_t r = 0; r < x.rows; ++r) {
    const T* from = x.data + r * x.row_stride;
    C* row = to + r * stride;
    if (x.column_stride == 1) {
      ORTM_SIMD
      for (int64_t j = 0; j < x.columns; ++j) row[j] = computed(from[j]) * factor;
    } else {
      for (int64_t j = 0; j < x.columns; ++j) row[j] = computed(from[j * x.column_stride]) * factor;
    }
  }
}

/// Rounds dense rows, each multiplied by its factor(row), into x.
template <class C, class T, class Factor>
void write_rows(const C* from, int64_t stride, const StridedMatrix<T>& x, const Factor& factor) {
  for (int64_t r = 0; r < x.rows; ++r) {
    T* to = x.data + r * x.row_stride;
    const C* row = from + r * stride;
    const C by = factor(r);
    if (x.column_stride == 1) {
      ORTM_SIMD
      for (int64_t j = 0; j < x.columns; ++j) to[j] = stored<T>(row[j] * by);
    } else {
      for (int64_t j = 0; j < x.columns; ++j) to[j * x.column_stride] = stored<T>(row[j] * by);
    }
  }
}

/// The left factor: element (i, k) at data[i * row_stride + k * inner_stride].
template <class C>
struct LeftFactor {
  const C* data = nullptr;
  int64_t row_stride = 0, inner_stride = 1;
};

/// c [kRows, kVectors vectors] (+)= a [kRows, inner] b, with b a panel.
template <class C, int kRows, int kVectors>
inline void multiply_tile(const LeftFactor<C>& a, const C* b, int64_t inner, C* c, int64_t c_stride,
                          bool adds) {
  using V = VecOf<C>;
  V sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i)
    for (int v = 0; v < kVectors; ++v) sums[i][v] = V(C(0));
  const C* left = a.data;
  for (int64_t k = 0; k < inner; ++k) {
    V right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = V::load(b + v * V::kCount);
    for (int i = 0; i < kRows; ++i) {
      const V factor(left[i * a.row_stride]);
      for (int v = 0; v < kVectors; ++v) sums[i][v] = multiply_add(factor, right[v], sums[i][v]);
    }
    left += a.inner_stride;
    b += kVectors * V::kCount;
  }
  for (int i = 0; i < kRows; ++i)
    for (int v = 0; v < kVectors; ++v) {
      C* to = c + i * c_stride + v * V::kCount;
      (adds ? V::load(to) + sums[i][v] : sums[i][v]).store(to);
    }
}

template <class C, int kVectors>
inline void multiply_rows(int64_t rows, const LeftFactor<C>& a, const C* b, int64_t inner, C* c,
                          int64_t c_stride, bool adds) {
  switch (rows) {
    case 1: return multiply_tile<C, 1, kVectors>(a, b, inner, c, c_stride, adds);
    case 2: return multiply_tile<C, 2, kVectors>(a, b, inner, c, c_stride, adds);
    case 3: return multiply_tile<C, 3, kVectors>(a, b, inner, c, c_stride, adds);
    case 4: return multiply_tile<C, 4, kVectors>(a, b, inner, c, c_stride, adds);
    case 5: return multiply_tile<C, 5, kVectors>(a, b, inner, c, c_stride, adds);
    default: return multiply_tile<C, 6, kVectors>(a, b, inner, c, c_stride, adds);
  }
}

/// What of a product matters where row i of a matrix has `diagonal` + i + 1 elements that count and
/// zeros behind them: columns of the result, or the inner dimension of the left factor, or that of
/// its transpose. What does not matter is left out tile by tile.
enum class Band { None, Columns, Inner, InnerOfTransposed };

/// c [rows, columns] (+)= a [rows, inner] b [inner, columns], with b in panels and rows of c
/// `c_stride` elements apart, which must hold whole vectors.
template <class C>
void panel_product(const LeftFactor<C>& a, const C* b, int64_t rows, int64_t columns, int64_t inner,
                   C* c, int64_t c_stride, bool adds, Band band = Band::None,
                   int64_t diagonal = 0) {
  for (int64_t begin = 0; begin == 0 || begin < inner; begin += kInnerPiece) {
    const int64_t end = std::min(inner, begin + kInnerPiece);
    for (int64_t column = 0; column < columns; column += kPanelWidth<C>) {
      const bool whole = columns - column > kVecCount<C>;
      const int64_t width = whole ? kPanelWidth<C> : kVecCount<C>;
      const C* panel = b + column * inner;
      for (int64_t row = 0; row < rows; row += kTileRows) {
        const int64_t count = std::min(kTileRows, rows - row), seen = diagonal + row + count;
        if (band == Band::Columns && column >= seen) continue;
        int64_t first = begin, last = end;
        if (band == Band::Inner) last = std::min(end, seen);
        if (band == Band::InnerOfTransposed) first = std::max(begin, row - diagonal);
        last = std::max(last, first);
        if (last == first && (begin > 0 || adds)) continue;
        const LeftFactor<C> left{a.data + row * a.row_stride + first * a.inner_stride, a.row_stride,
                                 a.inner_stride};
        const auto multiply = whole ? multiply_rows<C, 2> : multiply_rows<C, 1>;
        multiply(count, left, panel + first * width, last - first, c + row * c_stride + column,
                 c_stride, adds || begin > 0);
      }
    }
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
