// A product of a few rows with a matrix, which is read once from memory as it lies: packing it
// would take longer than the product. Every element is computed alike whatever the thread.
#pragma once

#include "kernels/cpu/panel_product.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// y [rows, columns] = alpha a [rows, inner] b [inner, columns] (+ y), with at most kMostRows rows
/// and y row-major. Its units are blocks of columns, of which neighbours are read together: parts
/// of rows below a page are too short for the processor to fetch ahead. Rows of a go by threes over
/// the part of b that the first three have brought to the cache. a and y may be of another type A
/// than b, which is computed as T is.
template <class T, class A = T>
class StreamedProduct {
 public:
  using C = ComputeOf<T>;
  static constexpr int64_t kMostRows = 32;
  /// Multiplications worth waking a thread: the matrix comes from memory.
  static constexpr int64_t kGrain = 1 << 18;

  /// Whether this is faster than a product that packs b, by measurement: each row of a reads and
  /// writes a row of sums for every few rows of b, and each dot of dense columns ends with a sum of
  /// lanes.
  static bool pays(int64_t rows, int64_t columns, int64_t inner, bool has_dense_columns) {
    if (rows <= kGroup) return true;
    if (rows > kMostRows) return false;
    if (has_dense_columns) return rows * 32 <= inner;
    return columns >= 64 || rows <= 2 * kGroup;
  }

  StreamedProduct(int64_t rows, int64_t columns, int64_t inner)
      : rows_(rows), columns_(columns), inner_(inner) {}

  int64_t units() const { return rows_ == 0 ? 0 : ceil_div(columns_ + kMostShift, kBlock); }

  /// Units [begin, end).
  void run(int64_t begin, int64_t end, const StridedMatrix<const A>& a,
           const StridedMatrix<const T>& b, C alpha, bool adds, A* y) const {
    if (rows_ <= kGroup)
      run_columns<kWide, kGroup>(begin, end, a, b, alpha, adds, y);
    else if (rows_ <= kMostRows / 2)
      run_columns<kWide / 4, kMostRows / 2>(begin, end, a, b, alpha, adds, y);
    else
      run_columns<kWide / 8, kMostRows>(begin, end, a, b, alpha, adds, y);
  }

 private:
  using V = VecOf<C>;
  static constexpr int64_t kBlock = 512 / int64_t{sizeof(C)}, kPiece = 1024;
  static constexpr int64_t kWide = 4096 / int64_t{sizeof(C)};  // columns that are read together
  static constexpr int kGroup = 3;                             // rows of a
  /// Dense columns of b whose products are made at once.
  static constexpr int kAbreast = V::kCount * sizeof(C) == 64 ? 8 : 4;
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

  /// Calls `body` with the first row of each group and, as a constant, how many it has.
  template <class Body>
  void for_each_group(const Body& body) const {
    int64_t row = 0;
    for (; row + kGroup <= rows_; row += kGroup) body(row, std::integral_constant<int, kGroup>());
    if (rows_ - row == 2) body(row, std::integral_constant<int, 2>());
    if (rows_ - row == 1) body(row, std::integral_constant<int, 1>());
  }

  /// The sums of `kColumns` columns of at most kSumRows rows fit into the cache beside the part of
  /// b that is read.
  template <int64_t kColumns, int64_t kSumRows>
  void run_columns(int64_t begin, int64_t end, const StridedMatrix<const A>& a,
                   const StridedMatrix<const T>& b, C alpha, bool adds, A* y) const {
    constexpr int64_t kUnits = kColumns / kBlock;
    const int64_t shift = shift_of(b);
    alignas(64) C sums[kSumRows * kColumns], left[kSumRows * kPiece];
    for (int64_t unit = begin; unit < end; unit += kUnits) {
      const int64_t last = std::min(unit + kUnits, end) * kBlock - shift;
      const int64_t column = std::max<int64_t>(0, unit * kBlock - shift);
      const int64_t count = std::min(last, columns_) - column;
      if (count <= 0) return;
      std::fill_n(sums, rows_ * kColumns, C(0));
      for (int64_t first = 0; first < inner_; first += kPiece) {
        const int64_t inner = std::min(kPiece, inner_ - first);
        copy_rows(StridedMatrix<const A>{a.data + first * a.column_stride, rows_, inner,
                                         a.row_stride, a.column_stride},
                  C(1), left, kPiece);
        const T* right = b.data + first * b.row_stride + column * b.column_stride;
        if (b.column_stride == 1)
          add_rows<kColumns>(left, right, b.row_stride, inner, count, sums);
        else
          add_dots<kColumns>(left, right, b.row_stride, b.column_stride, inner, count, sums);
      }
      for (int64_t i = 0; i < rows_; ++i) {
        A* to = y + i * columns_ + column;
        for (int64_t j = 0; j < count; ++j) {
          const C value = sums[i * kColumns + j] * alpha;
          to[j] = stored<A>(adds ? computed(to[j]) + value : value);
        }
      }
    }
  }

  /// sums += the rows of a row-major matrix, each times its element of `left`.
  template <int64_t kColumns>
  void add_rows(const C* left, const T* right, int64_t stride, int64_t inner, int64_t count,
                C* sums) const {
    // A row alone has registers for more factors.
    if (constexpr int kAlone = kTogether<1>; rows_ == 1)
      return add_rows_by<kColumns, kAlone>(left, right, stride, inner, count, sums);
    add_rows_by<kColumns, kTogether<kGroup>>(left, right, stride, inner, count, sums);
  }

  template <int64_t kColumns, int kSome>
  void add_rows_by(const C* left, const T* right, int64_t stride, int64_t inner, int64_t count,
                   C* sums) const {
    int64_t k = 0;
    for (; k + kSome <= inner; k += kSome) {
      const int64_t ahead = k + 2 * kSome <= inner ? kSome * stride : 0;
      add_some_rows<kColumns, kSome>(left + k, right + k * stride, stride, count, sums, ahead);
    }
    for (; k < inner; ++k)
      add_some_rows<kColumns, 1>(left + k, right + k * stride, stride, count, sums, 0);
  }

  /// Fetches the cache line `ahead` elements behind the one that begins at column `j`, not to the
  /// first level: those that are read now are in it.
  static void fetch(const T* row, int64_t j, int64_t ahead) {
    constexpr int64_t kPerLine = kLineBytes / int64_t{sizeof(T)};
    if (V::kCount >= kPerLine || j % kPerLine == 0) __builtin_prefetch(row + ahead + j, 0, 2);
  }

  /// sums += kInner rows of b, for all rows of a; those `ahead` elements behind are fetched.
  template <int64_t kColumns, int kInner>
  void add_some_rows(const C* left, const T* right, int64_t stride, int64_t count, C* sums,
                     int64_t ahead) const {
    alignas(64) C buffers[kInner][kIsHalf<T> ? kColumns : 1];
    const C* rows[kInner];
    for (int k = 0; k < kInner; ++k) rows[k] = computed_row(right + k * stride, count, buffers[k]);
    for_each_group([&](int64_t row, auto group) {
      constexpr int kRows = decltype(group)::value;
      const auto fetch_at = [&](int64_t j) {
        if (kInner == 1 || row > 0) return;
        ORTM_UNROLL
        for (int k = 0; k < kInner; ++k) fetch(right + k * stride, j, ahead);
      };
      add_group<kColumns, kRows, kInner>(left + row * kPiece, rows, count, sums + row * kColumns,
                                         fetch_at);
    });
  }

  template <int64_t kColumns, int kRows, int kInner, class Fetch>
  static void add_group(const C* left, const C* const* rows, int64_t count, C* sums,
                        const Fetch& fetch_at) {
    V factors[kInner][kRows];
    for (int k = 0; k < kInner; ++k)
      for (int i = 0; i < kRows; ++i) factors[k][i] = V(left[i * kPiece + k]);
    const auto add = [&](int64_t j, const auto& load) {
      V totals[kRows];
      ORTM_UNROLL
      for (int i = 0; i < kRows; ++i) totals[i] = V::load(sums + i * kColumns + j);
      fetch_at(j);
      ORTM_UNROLL
      for (int k = 0; k < kInner; ++k) {
        const V values = in_register(load(rows[k] + j));
        ORTM_UNROLL
        for (int i = 0; i < kRows; ++i) totals[i] = multiply_add(factors[k][i], values, totals[i]);
      }
      ORTM_UNROLL
      for (int i = 0; i < kRows; ++i) totals[i].store(sums + i * kColumns + j);
    };
    int64_t j = 0;
    for (; j + V::kCount <= count; j += V::kCount)
      add(j, [](const C* from) { return V::load(from); });
    if (j < count) add(j, [&](const C* from) { return load_first(from, count - j); });
  }

  /// The vector, which GCC 12 would load again for each of its products.
  static V in_register(V x) {
#if defined(__x86_64__)
    asm("" : "+v"(x.v));
#endif
    return x;
  }

  /// Fewer elements than a vector has, and 0.
  static V load_first(const C* from, int64_t count) {
    if constexpr (std::is_same_v<C, float>) return V::load(from, count);
    C padded[V::kCount] = {};
    std::copy_n(from, count, padded);
    return V::load(padded);
  }

  /// sums += the products of `left` with columns, each of which is dense where row_stride is 1.
  template <int64_t kColumns>
  void add_dots(const C* left, const T* right, int64_t row_stride, int64_t column_stride,
                int64_t inner, int64_t count, C* sums) const {
    C buffers[kAbreast][kPiece];
    for (int64_t j = 0; j < count; j += kAbreast) {
      const int64_t some = std::min<int64_t>(kAbreast, count - j);
      const C* columns[kAbreast];  // the last one again where there are fewer
      for (int64_t c = 0; c < kAbreast; ++c)
        columns[c] = dense_column(right + (j + std::min(c, some - 1)) * column_stride, row_stride,
                                  inner, buffers[c]);
      const T* next = right + (j + kAbreast) * column_stride;
      const bool fetches = row_stride == 1 && j + 2 * kAbreast <= count;
      for_each_group([&](int64_t row, auto group) {
        constexpr int kRows = decltype(group)::value;
        C totals[kRows][kAbreast];
        dots<kRows>(left + row * kPiece, columns, inner, totals, [&](int64_t k) {
          if (row > 0 || !fetches) return;
          ORTM_UNROLL
          for (int c = 0; c < kAbreast; ++c) fetch(next + c * column_stride, k, 0);
        });
        for (int64_t i = 0; i < kRows; ++i)
          for (int64_t c = 0; c < some; ++c) sums[(row + i) * kColumns + j + c] += totals[i][c];
      });
    }
  }

  static const C* dense_column(const T* from, int64_t stride, int64_t count, C* buffer) {
    if (stride == 1) return computed_row(from, count, buffer);
    for (int64_t k = 0; k < count; ++k) buffer[k] = computed(from[k * stride]);
    return buffer;
  }

  /// totals [kRows, kAbreast] = the products of rows of `left` and columns.
  template <int kRows, class Fetch>
  static void dots(const C* left, const C* const* columns, int64_t count,
                   C (&totals)[kRows][kAbreast], const Fetch& fetch_at) {
    V sums[kRows][kAbreast];
    ORTM_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ORTM_UNROLL
      for (int c = 0; c < kAbreast; ++c) sums[i][c] = V(C(0));
    }
    const auto add = [&](int64_t k, const auto& load) {
      V factors[kRows];
      ORTM_UNROLL
      for (int i = 0; i < kRows; ++i) factors[i] = load(left + i * kPiece + k);
      fetch_at(k);
      ORTM_UNROLL
      for (int c = 0; c < kAbreast; ++c) {
        const V values = in_register(load(columns[c] + k));
        ORTM_UNROLL
        for (int i = 0; i < kRows; ++i) sums[i][c] = multiply_add(factors[i], values, sums[i][c]);
      }
    };
    int64_t k = 0;
    for (; k + V::kCount <= count; k += V::kCount)
      add(k, [](const C* from) { return V::load(from); });
    if (k < count) add(k, [&](const C* from) { return load_first(from, count - k); });
    ORTM_UNROLL
    for (int i = 0; i < kRows; ++i) sum_lanes_of(sums[i], totals[i]);
  }

  static void sum_lanes_of(FloatVec (&x)[kAbreast], float (&totals)[kAbreast]) {
    for (int first = 0; first < kAbreast; first += 4) {
      const FloatVec quarters = halves_of<2>(halves_of<1>(x[first], x[first + 1]),
                                             halves_of<1>(x[first + 2], x[first + 3]));
      float lanes[FloatVec::kCount];
      quarters.store(lanes);
      for (int c = 0; c < 4; ++c) totals[first + c] = lanes[c];
      for (int64_t lane = 4; lane < FloatVec::kCount; lane += 4)
        for (int c = 0; c < 4; ++c) totals[first + c] += lanes[lane + c];
    }
  }
  static void sum_lanes_of(DoubleVec (&x)[kAbreast], double (&totals)[kAbreast]) {
    for (int c = 0; c < kAbreast; ++c) {
      double lanes[DoubleVec::kCount];
      x[c].store(lanes);
      totals[c] = lanes[0];
      for (int64_t lane = 1; lane < DoubleVec::kCount; ++lane) totals[c] += lanes[lane];
    }
  }

  /// Lanes of a and b kSize apart are added: sums of a where a lane's number has not the bit kSize,
  /// of b where it has.
  template <int kSize>
  static FloatVec halves_of(FloatVec a, FloatVec b) {
    constexpr int kCount = FloatVec::kCount;
    IntLanes low, high;  // lanes of the two one after the other
    for (int lane = 0; lane < kCount; ++lane) {
      low[lane] = lane & kSize ? kCount + lane - kSize : lane;
      high[lane] = lane & kSize ? kCount + lane : lane + kSize;
    }
    return __builtin_shuffle(a.v, b.v, low) + __builtin_shuffle(a.v, b.v, high);
  }

  int64_t rows_, columns_, inner_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
