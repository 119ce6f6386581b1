// A product whose right factor is packed once and then used many times with few rows: the recurrent
// weights of a layer, at every step of the sequence. Panels of the packed factor pass through the
// first-level cache while the tiles of rows, packed before, wait for them. Every element is one sum
// in the order of the inner dimension (in pieces), whatever rows are computed together.
#pragma once

#include "kernels/cpu/blocked_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// The right factor is packed as elements of P, which are widened in registers.
template <class C, class P = C>
class PackedProduct {
 public:
  PackedProduct(int64_t inner, int64_t columns) : inner_(inner), columns_(columns) {}

  /// Elements of the packed right factor; of a row of the product, which holds whole vectors.
  int64_t packed_elements() const { return panel_elements<C>(inner_, columns_); }
  int64_t row_elements() const { return whole_vectors<C>(columns_); }

  /// Packs `right` [inner, columns].
  template <class T>
  void pack(const StridedMatrix<const T>& right, P* to) const {
    for (int64_t first = 0; first < inner_; first += kPiece) {
      const int64_t count = std::min(kPiece, inner_ - first);
      pack_panels<P>(right.row_range(first, count), to);
      to += panel_elements<C>(count, columns_);
    }
  }

  /// y [rows, columns] = left [rows, inner] right; rows of y are row_elements() apart.
  void run(const C* left, int64_t left_stride, int64_t rows, const P* packed, C* y) const {
    for (int64_t row = 0; row < rows; row += kMostTiles * Tile::kMostRows) {
      const int64_t count = std::min(kMostTiles * Tile::kMostRows, rows - row);
      run_tiles({left + row * left_stride, count, inner_, left_stride, 1}, packed,
                y + row * row_elements());
    }
  }

 private:
  using Tile = ProductTile<C>;
  static constexpr int64_t kPiece = 256, kMostTiles = 4;

  void run_tiles(const StridedMatrix<const C>& left, const P* packed, C* y) const {
    const int64_t tiles = ceil_div(left.rows, Tile::kMostRows);
    const auto row_of = [&](int64_t tile) { return tile * left.rows / tiles; };
    alignas(64) C rows[kMostTiles * Tile::kLeftStride * kPiece];
    for (int64_t first = 0; first < inner_; first += kPiece) {
      const int64_t inner = std::min(kPiece, inner_ - first);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t row = row_of(tile), count = row_of(tile + 1) - row;
        const StridedMatrix<const C> part{left.data + row * left.row_stride + first, count, inner,
                                          left.row_stride, 1};
        Tile::functions(count).pack(part, C(1), rows + tile * Tile::kLeftStride * kPiece);
      }
      int64_t column = 0;
      if (left.rows == 1) column = run_panels<4>(rows, packed, inner, y, first > 0);
      if (left.rows == 2) column = run_panels<2, 2>(rows, packed, inner, y, first > 0);
      for (; column < columns_; column += kPanelWidth<C>) {
        const bool whole = columns_ - column > kVecCount<C>;
        for (int64_t tile = 0; tile < tiles; ++tile) {
          const auto& functions = Tile::template functions<P>(row_of(tile + 1) - row_of(tile));
          const auto multiply = whole ? functions.two_vectors : functions.one_vector;
          multiply(rows + tile * Tile::kLeftStride * kPiece, packed + column * inner, inner,
                   y + row_of(tile) * row_elements() + column, row_elements(), first > 0);
        }
      }
      packed += panel_elements<C>(inner, columns_);
    }
  }

  /// Products of one or two rows with the first panels, several at a time: sums of a single panel
  /// would wait for each other. Returns the columns that are done.
  template <int kPanels, int kRows = 1>
  int64_t run_panels(const C* rows, const P* packed, int64_t inner, C* y, bool adds) const {
    using V = VecOf<C>;
    constexpr int64_t kColumns = kPanels * kPanelWidth<C>;
    static_assert(kPanelWidth<C> == 2 * V::kCount);
    int64_t column = 0;
    for (; column + kColumns <= columns_; column += kColumns) {
      V sums[kRows][kPanels][2];
      ORTM_UNROLL
      for (int i = 0; i < kRows; ++i) {
        ORTM_UNROLL
        for (int p = 0; p < kPanels; ++p) sums[i][p][0] = sums[i][p][1] = V(C(0));
      }
      const P* panel = packed + column * inner;
      const C* left = rows;
      for (int64_t k = 0; k < inner; ++k, left += Tile::kLeftStride, panel += kPanelWidth<C>) {
        ORTM_UNROLL
        for (int p = 0; p < kPanels; ++p) {
          ORTM_UNROLL
          for (int v = 0; v < 2; ++v) {
            const V right = load_wide<V>(panel + p * inner * kPanelWidth<C> + v * V::kCount);
            ORTM_UNROLL
            for (int i = 0; i < kRows; ++i)
              sums[i][p][v] = multiply_add(V(left[i]), right, sums[i][p][v]);
          }
        }
      }
      ORTM_UNROLL
      for (int i = 0; i < kRows; ++i) {
        C* to = y + i * row_elements() + column;
        ORTM_UNROLL
        for (int j = 0; j < kPanels * 2; ++j, to += V::kCount)
          (adds ? V::load(to) + sums[i][j / 2][j % 2] : sums[i][j / 2][j % 2]).store(to);
      }
    }
    return column;
  }

  int64_t inner_, columns_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
