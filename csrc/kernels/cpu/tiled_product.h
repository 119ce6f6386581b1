// A product of two matrices that need not exist in memory: functions of the caller pack a block of
// each factor where it is wanted, and take the finished sums of a block. For factors of 16 bits,
// which are widened as they are packed, and for the windows of a convolution.
#pragma once

#include "kernels/cpu/blocked_product.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// sums [rows, columns] = left [rows, inner] right [inner, columns]. Its units are blocks of the
/// sums; every element is one sum in the order of the inner dimension (in pieces), whatever its
/// block and thread.
template <class C>
class TiledProduct {
 public:
  using Tile = ProductTile<C>;
  static constexpr int64_t kMostInner = 256;
  static constexpr int64_t kMostColumns = 1024 / sizeof(C);

  TiledProduct(int64_t rows, int64_t columns, int64_t inner)
      : rows_(rows), columns_(columns), inner_(inner), tiles_(ceil_div(rows, Tile::kMostRows)) {
    piece_ = equal_part(inner, kMostInner, 1);
    block_ = equal_part(columns, kMostColumns, kPanelWidth<C>);
    blocks_ = ceil_div(columns, block_);
    // What packs the right factor anew for each group of rows is worth it where few blocks would
    // leave threads without work.
    constexpr int64_t kLeastUnits = 4;
    const int64_t wanted = blocks_ == 0 ? 1 : ceil_div(kLeastUnits, blocks_);
    groups_ = std::max(ceil_div(tiles_, kMostTiles), std::min(tiles_, wanted));
  }

  int64_t units() const { return groups_ * blocks_; }

  /// Units [begin, end).
  ///   left(row, rows, first, inner, to) packs rows of the left factor as ProductTile::pack does,
  ///   right(first, inner, column, columns, to) packs panels of the right one as pack_panels does,
  ///   store(row, rows, column, columns, sums, stride) takes sums, whose rows are `stride` apart.
  template <class Left, class Right, class Store>
  void run(int64_t begin, int64_t end, const Left& left, const Right& right,
           const Store& store) const {
    // On the stack, so that any number of threads has them; half a MiB.
    alignas(64) C panels[kMostInner * kMostColumns];
    alignas(64) C sums[kMostTiles * Tile::kMostRows * kMostColumns];
    alignas(64) C packed[Tile::kLeftStride * kMostInner];
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t column = unit / groups_ * block_, group = unit % groups_;
      const int64_t first_tile = group * tiles_ / groups_;
      const int64_t last_tile = (group + 1) * tiles_ / groups_;
      const int64_t width = std::min(block_, columns_ - column);
      const int64_t top = row_of(first_tile), rows = row_of(last_tile) - top;
      if (inner_ == 0) std::fill_n(sums, rows * block_, C(0));
      for (int64_t first = 0; first < inner_; first += piece_) {
        const int64_t inner = std::min(piece_, inner_ - first);
        right(first, inner, column, width, panels);
        for (int64_t tile = first_tile; tile < last_tile; ++tile) {
          const int64_t row = row_of(tile), count = row_of(tile + 1) - row;
          left(row, count, first, inner, packed);
          multiply(packed, panels, count, inner, width, sums + (row - top) * block_, first > 0);
        }
      }
      store(top, rows, column, width, sums, block_);
    }
  }

 private:
  static constexpr int64_t kMostTiles = 252 / Tile::kMostRows;

  /// `size` in the fewest parts of at most `most`, all but the last equal, of whole units.
  static constexpr int64_t equal_part(int64_t size, int64_t most, int64_t unit) {
    const int64_t parts = std::max<int64_t>(1, ceil_div(size, most));
    return std::max(unit, ceil_div(ceil_div(size, parts), unit) * unit);
  }

  int64_t row_of(int64_t tile) const { return tile * rows_ / tiles_; }

  void multiply(const C* left, const C* panels, int64_t rows, int64_t inner, int64_t width, C* sums,
                bool adds) const {
    const auto& functions = Tile::functions(rows);
    for (int64_t column = 0; column < width; column += kPanelWidth<C>) {
      const auto multiply_panel =
          width - column > kVecCount<C> ? functions.two_vectors : functions.one_vector;
      multiply_panel(left, panels + column * inner, inner, sums + column, block_, adds);
    }
  }

  int64_t rows_, columns_, inner_, tiles_;
  int64_t piece_ = 0, block_ = 0, blocks_ = 0, groups_ = 0;
};

/// Packs rows of a left factor stored as T; at most as many as a tile has.
template <class C, class T>
void pack_left_rows(const StridedMatrix<const T>& rows, C* to) {
  using Tile = ProductTile<C>;
  const auto& functions = Tile::functions(rows.rows);
  if constexpr (std::is_same_v<C, T>) {
    functions.pack(rows, C(1), to);
  } else {
    C wide[Tile::kMostRows * TiledProduct<C>::kMostInner];
    if (rows.column_stride == 1) {
      for (int64_t i = 0; i < rows.rows; ++i)
        convert_row(rows.data + i * rows.row_stride, rows.columns, wide + i * rows.columns);
    } else {
      copy_rows(rows, C(1), wide, rows.columns);
    }
    functions.pack({wide, rows.rows, rows.columns, rows.columns, 1}, C(1), to);
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
