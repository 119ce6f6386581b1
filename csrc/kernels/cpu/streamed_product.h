// A product of a few rows with a matrix, which is read once from memory as it lies: packing it
// would take longer than the product. Every element is computed alike whatever the thread.
#pragma once

#include "kernels/cpu/panel_product.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// y [rows, columns] = alpha a [rows, inner] b [inner, columns] (+ y), with at most kMostRows rows
/// and y row-major. Its units are blocks of columns. a and y may be of another type A than b, which
/// is computed as T is.
template <class T, class A = T>
class StreamedProduct {
 public:
  using C = ComputeOf<T>;
  static constexpr int64_t kMostRows = 3;
  /// Multiplications worth waking a thread: the matrix comes from memory.
  static constexpr int64_t kGrain = 1 << 18;

  StreamedProduct(int64_t rows, int64_t columns, int64_t inner)
      : rows_(rows), columns_(columns), inner_(inner) {}

  int64_t units() const { return rows_ == 0 ? 0 : ceil_div(columns_, kBlock); }

  /// Units [begin, end).
  void run(int64_t begin, int64_t end, const StridedMatrix<const A>& a,
           const StridedMatrix<const T>& b, C alpha, bool adds, A* y) const {
    switch (rows_) {
      case 1: return run_rows<1>(begin, end, a, b, alpha, adds, y);
      case 2: return run_rows<2>(begin, end, a, b, alpha, adds, y);
      default: return run_rows<3>(begin, end, a, b, alpha, adds, y);
    }
  }

 private:
  using V = VecOf<C>;
  static constexpr int64_t kBlock = 256, kPiece = 512;

  template <int kRows>
  void run_rows(int64_t begin, int64_t end, const StridedMatrix<const A>& a,
                const StridedMatrix<const T>& b, C alpha, bool adds, A* y) const {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t column = unit * kBlock, count = std::min(kBlock, columns_ - column);
      alignas(64) C sums[kRows * kBlock] = {};
      for (int64_t first = 0; first < inner_; first += kPiece) {
        const int64_t inner = std::min(kPiece, inner_ - first);
        C left[kRows * kPiece];
        copy_rows(StridedMatrix<const A>{a.data + first * a.column_stride, kRows, inner,
                                         a.row_stride, a.column_stride},
                  C(1), left, kPiece);
        const T* right = b.data + first * b.row_stride + column * b.column_stride;
        if (b.column_stride == 1)
          add_rows<kRows>(left, right, b.row_stride, inner, count, sums);
        else
          add_dots<kRows>(left, right, b.row_stride, b.column_stride, inner, count, sums);
      }
      for (int64_t i = 0; i < kRows; ++i) {
        A* to = y + i * columns_ + column;
        for (int64_t j = 0; j < count; ++j) {
          const C value = sums[i * kBlock + j] * alpha;
          to[j] = stored<A>(adds ? computed(to[j]) + value : value);
        }
      }
    }
  }

  /// sums += the rows of a row-major matrix, each times its element of `left`.
  template <int kRows>
  static void add_rows(const C* left, const T* right, int64_t stride, int64_t inner, int64_t count,
                       C* sums) {
    C buffer[kBlock];
    for (int64_t k = 0; k < inner; ++k) {
      const C* row = computed_row(right + k * stride, count, buffer);
      int64_t j = 0;
      for (; j + V::kCount <= count; j += V::kCount) {
        const V values = V::load(row + j);
        ORTM_UNROLL
        for (int i = 0; i < kRows; ++i) {
          C* sum = sums + i * kBlock + j;
          multiply_add(V(left[i * kPiece + k]), values, V::load(sum)).store(sum);
        }
      }
      for (; j < count; ++j)
        for (int i = 0; i < kRows; ++i) sums[i * kBlock + j] += left[i * kPiece + k] * row[j];
    }
  }

  /// sums += the products of `left` with columns, each of which is dense where row_stride is 1.
  template <int kRows>
  static void add_dots(const C* left, const T* right, int64_t row_stride, int64_t column_stride,
                       int64_t inner, int64_t count, C* sums) {
    C buffer[kPiece];
    for (int64_t j = 0; j < count; ++j) {
      const T* from = right + j * column_stride;
      const C* column = buffer;
      if (row_stride == 1) {
        column = computed_row(from, inner, buffer);
      } else {
        for (int64_t k = 0; k < inner; ++k) buffer[k] = computed(from[k * row_stride]);
      }
      for (int i = 0; i < kRows; ++i) sums[i * kBlock + j] += dot(left + i * kPiece, column, inner);
    }
  }

  static C dot(const C* a, const C* b, int64_t count) {
    constexpr int kSums = 4;
    V sums[kSums];
    ORTM_UNROLL
    for (V& sum : sums) sum = V(C(0));
    int64_t k = 0;
    for (; k + kSums * V::kCount <= count; k += kSums * V::kCount) {
      ORTM_UNROLL
      for (int s = 0; s < kSums; ++s) {
        const int64_t at = k + s * V::kCount;
        sums[s] = multiply_add(V::load(a + at), V::load(b + at), sums[s]);
      }
    }
    C lanes[V::kCount];
    ((sums[0] + sums[1]) + (sums[2] + sums[3])).store(lanes);
    C total = C(0);
    for (; k < count; ++k) total += a[k] * b[k];
    for (const C lane : lanes) total += lane;
    return total;
  }

  int64_t rows_, columns_, inner_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
