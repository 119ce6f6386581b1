// A product of a few rows with a matrix, which is read once from memory as it lies: packing it
// would take longer than the product. Every element is computed alike whatever the thread.
#pragma once

#include "kernels/cpu/panel_product.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// y [rows, columns] = alpha a [rows, inner] b [inner, columns] (+ y), with at most kMostRows rows
/// and y row-major. Its units are blocks of columns, of which neighbours are read together: parts
/// of rows below a page are too short for the processor to fetch ahead. a and y may be of another
/// type A than b, which is computed as T is.
template <class T, class A = T>
class StreamedProduct {
 public:
  using C = ComputeOf<T>;
  static constexpr int64_t kMostRows = 3;
  /// Multiplications worth waking a thread: the matrix comes from memory.
  static constexpr int64_t kGrain = 1 << 18;

  StreamedProduct(int64_t rows, int64_t columns, int64_t inner)
      : rows_(rows), columns_(columns), inner_(inner) {}

  int64_t units() const { return rows_ == 0 ? 0 : ceil_div(columns_ + kMostShift, kBlock); }

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
  static constexpr int64_t kWide = 4096 / int64_t{sizeof(C)};  // columns that are read together
  /// Rows of b that are read together: as many as there are registers for their factors. Each is a
  /// stream of its own, and processors fetch ahead within pages alone, whereas rows are as short as
  /// a page or two.
  template <int kRows>
  static constexpr int kTogether = kRows == 1 || V::kCount * sizeof(C) == 64 ? 8 : 4;
  static constexpr int64_t kLineBytes = 64, kMostShift = kLineBytes / int64_t{sizeof(T)} - 1;

  /// By how many columns blocks begin earlier, so that vectors of rows lie in one cache line each:
  /// weights in the bytes of a model begin anywhere.
  static int64_t shift_of(const StridedMatrix<const T>& b) {
    const auto beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(b.data) % kLineBytes);
    return b.column_stride == 1 ? beyond / int64_t{sizeof(T)} : 0;
  }

  template <int kRows>
  void run_rows(int64_t begin, int64_t end, const StridedMatrix<const A>& a,
                const StridedMatrix<const T>& b, C alpha, bool adds, A* y) const {
    constexpr int64_t kUnits = kWide / kBlock;
    const int64_t shift = shift_of(b);
    for (int64_t unit = begin; unit < end; unit += kUnits) {
      const int64_t last = std::min(unit + kUnits, end) * kBlock - shift;
      const int64_t column = std::max<int64_t>(0, unit * kBlock - shift);
      const int64_t count = std::min(last, columns_) - column;
      if (count <= 0) return;
      alignas(64) C sums[kRows * kWide] = {};
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
          const C value = sums[i * kWide + j] * alpha;
          to[j] = stored<A>(adds ? computed(to[j]) + value : value);
        }
      }
    }
  }

  /// sums += the rows of a row-major matrix, each times its element of `left`.
  template <int kRows>
  static void add_rows(const C* left, const T* right, int64_t stride, int64_t inner, int64_t count,
                       C* sums) {
    constexpr int kSome = kTogether<kRows>;
    int64_t k = 0;
    for (; k + kSome <= inner; k += kSome) {
      const int64_t ahead = k + 2 * kSome <= inner ? kSome * stride : 0;
      add_some_rows<kRows, kSome>(left + k, right + k * stride, stride, count, sums, ahead);
    }
    for (; k < inner; ++k)
      add_some_rows<kRows, 1>(left + k, right + k * stride, stride, count, sums, 0);
  }

  /// Fetches the cache line `ahead` elements behind the one that begins at column `j`, not to the
  /// first level: those that are read now are in it.
  static void fetch(const T* row, int64_t j, int64_t ahead) {
    constexpr int64_t kPerLine = kLineBytes / int64_t{sizeof(T)};
    if (V::kCount >= kPerLine || j % kPerLine == 0) __builtin_prefetch(row + ahead + j, 0, 2);
  }

  template <int kRows, int kInner>
  static void add_some_rows(const C* left, const T* right, int64_t stride, int64_t count, C* sums,
                            int64_t ahead) {
    alignas(64) C buffers[kInner][kIsHalf<T> ? kWide : 1];
    const C* rows[kInner];
    V factors[kInner][kRows];
    for (int k = 0; k < kInner; ++k) {
      rows[k] = computed_row(right + k * stride, count, buffers[k]);
      for (int i = 0; i < kRows; ++i) factors[k][i] = V(left[i * kPiece + k]);
    }
    const auto add = [&](int64_t j, const auto& load) {
      V totals[kRows];
      ORTM_UNROLL
      for (int i = 0; i < kRows; ++i) totals[i] = V::load(sums + i * kWide + j);
      ORTM_UNROLL
      for (int k = 0; k < kInner; ++k) {
        const V values = load(rows[k] + j);
        if constexpr (kInner > 1) fetch(right + k * stride, j, ahead);
        ORTM_UNROLL
        for (int i = 0; i < kRows; ++i) totals[i] = multiply_add(factors[k][i], values, totals[i]);
      }
      ORTM_UNROLL
      for (int i = 0; i < kRows; ++i) totals[i].store(sums + i * kWide + j);
    };
    int64_t j = 0;
    for (; j + V::kCount <= count; j += V::kCount)
      add(j, [](const C* from) { return V::load(from); });
    if (j < count) add(j, [&](const C* from) { return load_first(from, count - j); });
  }

  /// Fewer elements than a vector has, and 0.
  static V load_first(const C* from, int64_t count) {
    if constexpr (std::is_same_v<C, float>) return V::load(from, count);
    C padded[V::kCount] = {};
    std::copy_n(from, count, padded);
    return V::load(padded);
  }

  /// sums += the products of `left` with columns, each of which is dense where row_stride is 1.
  template <int kRows>
  static void add_dots(const C* left, const T* right, int64_t row_stride, int64_t column_stride,
                       int64_t inner, int64_t count, C* sums) {
    constexpr int64_t kAhead = 4;  // columns, each of which is elsewhere in memory
    C buffer[kPiece];
    for (int64_t j = 0; j < count; ++j) {
      const T* from = right + j * column_stride;
      const C* column = buffer;
      if (row_stride == 1 && j + kAhead < count)
        for (int64_t k = 0; k < inner; k += kLineBytes / int64_t{sizeof(T)})
          __builtin_prefetch(from + kAhead * column_stride + k, 0, 2);
      if (row_stride == 1) {
        column = computed_row(from, inner, buffer);
      } else {
        for (int64_t k = 0; k < inner; ++k) buffer[k] = computed(from[k * row_stride]);
      }
      for (int i = 0; i < kRows; ++i) sums[i * kWide + j] += dot(left + i * kPiece, column, inner);
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
