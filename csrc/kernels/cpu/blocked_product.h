// A product of two matrices, blocked for the caches: pieces of the inner dimension, of which a
// block of the right factor is packed into panels that stay in the second-level cache while tiles
// of rows pass by. (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication",
// 2008.)
#pragma once

#include <array>
#include <utility>

#include "kernels/cpu/half_rows.h"
#include "kernels/cpu/panel_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// One tile of a product: up to kMostRows rows of the left factor, packed so that what a column
/// holds of them lies together.
template <class C>
struct ProductTile {
  /// With two vectors each and their two factors, 30 of AVX-512's 32 registers, 14 of the 16 of
  /// others.
  static constexpr int kMostRows = kVectorBytes == 64 ? 14 : 6;
  /// Elements from one column of the packed rows to the next.
  static constexpr int64_t kLeftStride = kVectorBytes == 64 ? 16 : 8;

  /// Packs alpha times `rows`, which has kRows.
  template <int kRows>
  static void pack(const StridedMatrix<const C>& rows, C alpha, C* to) {
    int64_t k = 0;
    if constexpr (std::is_same_v<C, float> && kMostRows < FloatVec::kCount) {
      if (rows.row_stride == 1) return pack_columns<kRows>(rows, alpha, to);
      if (rows.column_stride == 1) k = pack_squares<kRows>(rows, alpha, to);
    }
    for (; k < rows.columns; ++k) {
      const C* from = rows.data + k * rows.column_stride;
      ORTM_UNROLL
      for (int i = 0; i < kRows; ++i) to[k * kLeftStride + i] = from[i * rows.row_stride] * alpha;
    }
  }

  /// Whether rows are read where they lie: a single one, whose elements would be a cache line
  /// apart, or a product with so few columns that packing the rows takes as long. Rows a page apart
  /// take each other's place in the first-level cache.
  static bool reads_in_place(const StridedMatrix<const C>& rows, C alpha, int64_t columns) {
    constexpr int64_t kPage = 4096 / sizeof(C);
    if (alpha != C(1) || rows.column_stride != 1) return false;
    return rows.rows == 1 || (columns <= kPanelWidth<C> && rows.row_stride < kPage);
  }

  /// y [kRows, kVectors vectors] (+)= left [kRows, inner] panel [inner, kVectors vectors]. A panel
  /// of 16-bit floats is widened on the way.
  template <int kRows, int kVectors, class Panel = C>
  static void multiply(const C* left, const Panel* panel, int64_t inner, C* y, int64_t y_stride,
                       bool adds) {
    multiply_rows<kRows, kVectors>(PackedRows{left}, panel, inner, y, y_stride, adds);
  }

  /// The same with rows `left_stride` apart, and the same bits.
  template <int kRows, int kVectors>
  static void multiply_in_place(const C* left, int64_t left_stride, const C* panel, int64_t inner,
                                C* y, int64_t y_stride, bool adds) {
    multiply_rows<kRows, kVectors>(RowsInPlace<kRows>(left, left_stride), panel, inner, y, y_stride,
                                   adds);
  }

  /// Panels that `multiply_abreast` reads at a time.
  static constexpr int kAbreast = 4;

  /// The same, with the same bits, of one row and panels that follow each other, side by side: they
  /// come from memory, and a processor fetches ahead in each of several streams, but within pages.
  template <class Panel>
  static void multiply_abreast(const C* left, int64_t left_stride, const Panel* panels,
                               int64_t inner, C* y, bool adds) {
    using V = VecOf<C>;
    constexpr int kVectors = 2 * kAbreast;
    constexpr int64_t kAhead = 2048 / sizeof(Panel);
    V sums[kVectors];
    ORTM_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[v] = V(C(0));
    for (int64_t k = 0; k < inner; ++k, left += left_stride, panels += 2 * V::kCount) {
      const V factor(*left);
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const Panel* from = panels + (v / 2 * inner * 2 + v % 2) * V::kCount;
        __builtin_prefetch(from + kAhead, 0, 2);
        sums[v] = multiply_add(factor, load_wide<V>(from), sums[v]);
      }
    }
    ORTM_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      C* to = y + v * V::kCount;
      (adds ? V::load(to) + sums[v] : sums[v]).store(to);
    }
  }

  /// The functions for a number of rows and panels of that type.
  template <class Panel>
  struct Functions {
    void (*pack)(const StridedMatrix<const C>& rows, C alpha, C* to);
    void (*one_vector)(const C*, const Panel*, int64_t, C*, int64_t, bool);
    void (*two_vectors)(const C*, const Panel*, int64_t, C*, int64_t, bool);
  };
  template <class Panel = C>
  static const Functions<Panel>& functions(int64_t rows) {
    static constexpr auto kFunctions = []<int... i>(std::integer_sequence<int, i...>) {
      return std::array<Functions<Panel>, sizeof...(i)>{Functions<Panel>{
          &pack<i + 1>, &multiply<i + 1, 1, Panel>, &multiply<i + 1, 2, Panel>}...};
    }
    (std::make_integer_sequence<int, kMostRows>());
    return kFunctions[static_cast<size_t>(rows - 1)];
  }

  /// Those for rows in place.
  struct InPlace {
    void (*one_vector)(const C*, int64_t, const C*, int64_t, C*, int64_t, bool);
    void (*two_vectors)(const C*, int64_t, const C*, int64_t, C*, int64_t, bool);
  };
  static const InPlace& in_place(int64_t rows) {
    static constexpr auto kFunctions = []<int... i>(std::integer_sequence<int, i...>) {
      return std::array<InPlace, sizeof...(i)>{
          InPlace{&multiply_in_place<i + 1, 1>, &multiply_in_place<i + 1, 2>}...};
    }
    (std::make_integer_sequence<int, kMostRows>());
    return kFunctions[static_cast<size_t>(rows - 1)];
  }

 private:
  struct PackedRows {
    const C* column;
    C row(int i) const { return column[i]; }
    void next() { column += kLeftStride; }
  };

  // By a pointer for each three rows, from which addresses by one stride and two reach the others.
  template <int kRows>
  struct RowsInPlace {
    static constexpr int kPointers = (kRows + 2) / 3;
    const C* pointers[kPointers];
    int64_t stride;
    RowsInPlace(const C* rows, int64_t row_stride) : stride(row_stride) {
      for (int i = 0; i < kPointers; ++i) pointers[i] = rows + 3 * i * row_stride;
    }
    C row(int i) const { return pointers[i / 3][i % 3 * stride]; }
    void next() {
      ORTM_UNROLL
      for (int i = 0; i < kPointers; ++i) ++pointers[i];
    }
  };

  template <int kRows, int kVectors, class Left, class Panel>
  static void multiply_rows(Left left, const Panel* panel, int64_t inner, C* y, int64_t y_stride,
                            bool adds) {
    using V = VecOf<C>;
    V sums[kRows][kVectors];
    ORTM_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] = V(C(0));
        __builtin_prefetch(y + i * y_stride + v * V::kCount, 1);
      }
    }
    for (int64_t k = 0; k < inner; ++k) {
      V right[kVectors];
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v) right[v] = load_wide<V>(panel + v * V::kCount);
      ORTM_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const V factor(left.row(i));
        ORTM_UNROLL
        for (int v = 0; v < kVectors; ++v) sums[i][v] = multiply_add(factor, right[v], sums[i][v]);
      }
      left.next();
      panel += kVectors * V::kCount;
    }
    ORTM_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        C* to = y + i * y_stride + v * V::kCount;
        (adds ? V::load(to) + sums[i][v] : sums[i][v]).store(to);
      }
    }
  }

  // Of columns that are dense.
  template <int kRows>
  static void pack_columns(const StridedMatrix<const C>& rows, C alpha, C* to) {
    for (int64_t k = 0; k < rows.columns; ++k) {
      const FloatVec column = FloatVec::load(rows.data + k * rows.column_stride, kRows);
      (column * FloatVec(alpha)).store(to + k * kLeftStride);
    }
  }

  // Of rows that are dense; returns how many columns are done.
  template <int kRows>
  static int64_t pack_squares(const StridedMatrix<const C>& rows, C alpha, C* to) {
    constexpr int64_t kCount = FloatVec::kCount;
    int64_t k = 0;
    for (; k + kCount <= rows.columns; k += kCount) {
      FloatVec square[kCount];
      ORTM_UNROLL
      for (int64_t i = 0; i < kCount; ++i)
        square[i] = i < kRows
                        ? FloatVec::load(rows.data + i * rows.row_stride + k) * FloatVec(alpha)
                        : FloatVec(0.0f);
      transpose_square(square);
      ORTM_UNROLL
      for (int64_t i = 0; i < kCount; ++i) square[i].store(to + (k + i) * kLeftStride);
    }
    return k;
  }
};

/// y [rows, columns] (+)= sums, whose rows are a panel wide: whole vectors would run over the end
/// of a row of y.
template <class C>
void store_columns(const C* sums, int64_t rows, int64_t columns, bool adds, C* y,
                   int64_t y_stride) {
  using V = VecOf<C>;
  for (int64_t i = 0; i < rows; ++i, sums += kPanelWidth<C>, y += y_stride) {
    int64_t j = 0;
    if constexpr (std::is_same_v<C, float>) {
      for (; j < columns; j += V::kCount) {
        const int64_t count = std::min(V::kCount, columns - j);
        const V sum = V::load(sums + j);
        if (count == V::kCount)
          (adds ? V::load(y + j) + sum : sum).store(y + j);
        else
          (adds ? V::load(y + j, count) + sum : sum).store(y + j, count);
      }
    }
    for (; j < columns; ++j) y[j] = adds ? y[j] + sums[j] : sums[j];
  }
}

/// y [rows, columns] (+)= rows [rows, inner] panels [inner, columns]: a tile of rows that are read
/// in place.
template <class C>
void multiply_in_place(const StridedMatrix<const C>& rows, const C* panels, int64_t columns,
                       bool adds, C* y, int64_t y_stride) {
  using Tile = ProductTile<C>;
  using V = VecOf<C>;
  const auto& functions = Tile::in_place(rows.rows);
  int64_t column = 0;
  if (rows.rows == 1)
    for (constexpr int64_t kWide = Tile::kAbreast * kPanelWidth<C>; column + kWide <= columns;
         column += kWide)
      Tile::multiply_abreast(rows.data, rows.column_stride, panels + column * rows.columns,
                             rows.columns, y + column, adds);
  for (; column < columns; column += kPanelWidth<C>) {
    const int64_t count = std::min(kPanelWidth<C>, columns - column);
    const C* panel = panels + column * rows.columns;
    const auto multiply = count > V::kCount ? functions.two_vectors : functions.one_vector;
    if (count == kPanelWidth<C>) {
      multiply(rows.data, rows.row_stride, panel, rows.columns, y + column, y_stride, adds);
      continue;
    }
    alignas(64) C sums[Tile::kMostRows * kPanelWidth<C>];
    multiply(rows.data, rows.row_stride, panel, rows.columns, sums, kPanelWidth<C>, false);
    store_columns(sums, rows.rows, count, adds, y + column, y_stride);
  }
}

/// y [rows, columns] = alpha a [rows, inner] b [inner, columns], or y += that; y is row-major.
/// Its units are rows of tiles in blocks of columns, block by block; any range of them can be made
/// by itself. Every element is one sum in the order of the inner dimension (in pieces).
template <class C>
class BlockedProduct {
 public:
  BlockedProduct(int64_t rows, int64_t columns, int64_t inner)
      : rows_(rows),
        columns_(columns),
        inner_(inner),
        tiles_(ceil_div(rows, Tile::kMostRows)),
        piece_(equal_part(inner, kMostInner, 1)),
        block_(equal_part(columns, kMostColumns, kPanelWidth<C>)) {}

  int64_t units() const { return tiles_ * ceil_div(columns_, block_); }

  /// Units [begin, end).
  void run(int64_t begin, int64_t end, const StridedMatrix<const C>& a,
           const StridedMatrix<const C>& b, C alpha, bool adds, C* y) const {
    // On the stack, so that any number of threads has one; half a MiB.
    alignas(64) C panels[kMostInner * kMostColumns];
    while (begin < end) {
      const int64_t block = begin / tiles_, tile = begin % tiles_;
      const int64_t tiles = std::min(tiles_ - tile, end - begin);
      run_block(tile, tile + tiles, a, b, block * block_, alpha, adds, y, panels);
      begin += tiles;
    }
  }

 private:
  using Tile = ProductTile<C>;
  static constexpr int64_t kMostInner = 256;
  static constexpr int64_t kMostColumns = 2048 / sizeof(C);  // half a MiB in a block

  /// `size` in the fewest parts of at most `most`, all but the last equal, of whole units.
  static constexpr int64_t equal_part(int64_t size, int64_t most, int64_t unit) {
    const int64_t parts = std::max<int64_t>(1, ceil_div(size, most));
    return std::max(unit, ceil_div(ceil_div(size, parts), unit) * unit);
  }

  void run_block(int64_t first_tile, int64_t last_tile, const StridedMatrix<const C>& a,
                 const StridedMatrix<const C>& b, int64_t column, C alpha, bool adds, C* y,
                 C* workspace) const {
    const int64_t width = std::min(block_, columns_ - column);
    for (int64_t first = 0; first < inner_; first += piece_) {
      const int64_t inner = std::min(piece_, inner_ - first);
      const C* right = b.data + first * b.row_stride + column * b.column_stride;
      pack_panels<C>(StridedMatrix<const C>{right, inner, width, b.row_stride, b.column_stride},
                     workspace);
      const StridedMatrix<const C> left{a.data + first * a.column_stride, rows_, inner,
                                        a.row_stride, a.column_stride};
      const bool in_place = Tile::reads_in_place(left, alpha, columns_);
      alignas(64) C packed[Tile::kLeftStride * kMostInner];
      for (int64_t tile = first_tile; tile < last_tile; ++tile) {
        // Tiles of equal height: one of two rows would take nearly as long as one of all.
        const int64_t row = tile * rows_ / tiles_, count = (tile + 1) * rows_ / tiles_ - row;
        if (in_place) {
          multiply_in_place<C>(left.row_range(row, count), workspace, width, adds || first > 0,
                               y + row * columns_ + column, columns_);
          continue;
        }
        Tile::functions(count).pack(left.row_range(row, count), alpha, packed);
        multiply_row_of_tiles(packed, count, inner, width, adds || first > 0,
                              y + row * columns_ + column, workspace);
      }
    }
  }

  void multiply_row_of_tiles(const C* left, int64_t rows, int64_t inner, int64_t width, bool adds,
                             C* y, const C* panels) const {
    const auto& functions = Tile::functions(rows);
    for (int64_t column = 0; column < width; column += kPanelWidth<C>) {
      const int64_t count = std::min(kPanelWidth<C>, width - column);
      const C* panel = panels + column * inner;
      if (count == kPanelWidth<C>) {
        functions.two_vectors(left, panel, inner, y + column, columns_, adds);
        continue;
      }
      alignas(64) C sums[Tile::kMostRows * kPanelWidth<C>];
      const auto multiply_part =
          count > kVecCount<C> ? functions.two_vectors : functions.one_vector;
      multiply_part(left, panel, inner, sums, kPanelWidth<C>, false);
      store_columns(sums, rows, count, adds, y + column, columns_);
    }
  }

  int64_t rows_, columns_, inner_, tiles_, piece_, block_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
