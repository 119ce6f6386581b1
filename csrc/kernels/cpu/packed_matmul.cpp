// PackWeights and PackedMatMul: products with a weight whose panels are packed once, not in every
// call. The panels of a piece of the inner dimension follow each other, piece after piece, so that
// any range of columns is found in any piece. Every element is one sum in the order of the inner
// dimension (in pieces), as in blocked_product.h. A weight of 16 bits stays so: a block of its
// panels is widened while tiles of rows pass by, or in registers where there is one tile.
#include "kernels/cpu/blocked_product.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/half_rows.h"
#include "kernels/cpu/read_range.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kPiece = kInnerPiece;  // of the inner dimension

// --- PackWeights ---------------------------------------------------------------------------------
/// 16-bit floats are packed as they are, in panels as wide as those of float32. A weight is read
/// from front to back, so that its pages may go meanwhile: block by block of about a megabyte where
/// it lies column by column, else piece by piece.
template <class T>
class WeightPacking {
 public:
  explicit WeightPacking(const KernelArgs& args)
      : w_{args.in[0].as<T>(), args.in[0].sizes[0], args.in[0].sizes[1], args.in[0].strides[0],
           args.in[0].strides[1]},
        to_(args.out[0].as<T>()),
        end_(to_ + args.out[0].element_count()),
        read_(args.context) {}

  void run() {
    const bool by_columns = w_.row_stride == 1 && w_.column_stride != 1;
    const int64_t block = by_columns ? columns_of(w_.rows) : w_.columns;
    for (int64_t column = 0; column < w_.columns; column += block) {
      const int64_t width = std::min(block, w_.columns - column);
      for (int64_t row = 0; row < w_.rows; row += kPiece)
        pack_piece(row, std::min(kPiece, w_.rows - row), column, width);
      if (by_columns && w_.column_stride == w_.rows)
        read_.has_read(w_.data + column * w_.rows, w_.data + (column + width) * w_.rows);
    }
    // The op has room for the longest vectors of all machines.
    std::fill(to_ + panel_elements<T>(w_.rows, w_.columns), end_, T(0));
  }

 private:
  /// Whole panels of so many rows that have about a megabyte.
  static int64_t columns_of(int64_t rows) {
    constexpr int64_t kElements = (1 << 20) / sizeof(T);
    return ceil_div(kElements, std::max<int64_t>(rows, 1) * kPanelWidth<T>) * kPanelWidth<T>;
  }

  void pack_piece(int64_t row, int64_t rows, int64_t column, int64_t columns) {
    const bool by_rows = w_.column_stride == 1 && w_.row_stride == columns;
    T* piece = to_ + panel_elements<T>(row, w_.columns);
    const int64_t block = columns_of(rows);
    for (int64_t first = column; first < column + columns; first += block) {
      const int64_t width = std::min(block, column + columns - first);
      const StridedMatrix<const T> part{w_.data + row * w_.row_stride + first * w_.column_stride,
                                        rows, width, w_.row_stride, w_.column_stride};
      pack_panels<T>(part, piece + first * rows);
      if (by_rows && width < columns)  // rows of a part are not neighbours
        for (int64_t r = 0; r < rows; ++r)
          read_.has_read_now(part.data + r * columns, part.data + r * columns + width);
    }
    if (by_rows) read_.has_read(w_.data + row * columns, w_.data + (row + rows) * columns);
  }

  StridedMatrix<const T> w_;
  T* to_;
  T* end_;
  ReadRange read_;
};

void run_pack_weights(const KernelArgs& args) {
  switch (args.in[0].dtype) {
    case DType::Float64: return WeightPacking<double>(args).run();
    case DType::Float32: return WeightPacking<float>(args).run();
    default: return WeightPacking<uint16_t>(args).run();
  }
}

// --- PackedMatMul --------------------------------------------------------------------------------
struct Product {
  int64_t rows = 1, columns = 0, inner = 0;
  double alpha = 1.0;

  explicit Product(const StepFacts& facts)
      : columns(facts.node().attrs.integer("columns")), alpha(facts.node().attrs.number("alpha")) {
    const Sizes& x = facts.inputs[0].layout.sizes;
    inner = x.back();
    for (size_t d = 0; d + 1 < x.size(); ++d) rows *= x[d];
  }
};

/// Rows of x and y are stored as X, the packed weight as W.
template <class X, class W>
class PackedBlocks {
 public:
  using C = ComputeOf<X>;
  using Tile = ProductTile<C>;

  PackedBlocks(const KernelArgs& args, const Product& p)
      : p_(p),
        tiles_(ceil_div(p.rows, Tile::kMostRows)),
        x_(args.in[0].as<X>()),
        packed_(args.in[1].as<W>()),
        bias_(args.in.size() > 2 ? args.in[2].as<X>() : nullptr),
        y_(args.out[0].as<X>()) {}

  int64_t units() const { return tiles_ * ceil_div(p_.columns, block()); }
  int64_t unit_work() const { return ceil_div(p_.rows, tiles_) * block() * p_.inner; }

  /// Units [begin, end): rows of tiles in blocks of columns, block by block.
  void run(int64_t begin, int64_t end) const {
    while (begin < end) {
      const int64_t block = begin / tiles_, tile = begin % tiles_;
      int64_t tiles = std::min(tiles_ - tile, end - begin);
      if (kRounds) tiles = std::min(tiles, kMostTiles);
      run_block(tile, tile + tiles, block * this->block());
      begin += tiles;
    }
  }

 private:
  static constexpr bool kWidens = !std::is_same_v<W, C>, kRounds = !std::is_same_v<X, C>;
  static constexpr int64_t kMostColumns = 1024 / sizeof(C);
  static constexpr int64_t kMostTiles = 252 / Tile::kMostRows;  // whose sums are rounded at the end

  /// A block of panels stays in the second-level cache; few rows want small units for threads.
  int64_t block() const { return tiles_ > 1 ? kMostColumns : 4 * kPanelWidth<C>; }
  int64_t row_of(int64_t tile) const { return tile * p_.rows / tiles_; }

  void run_block(int64_t first_tile, int64_t last_tile, int64_t column) const {
    alignas(64) C sums[kRounds ? kMostTiles * Tile::kMostRows * kMostColumns : 1];
    alignas(64) C wide[kWidens ? kPiece * kMostColumns : 1];
    const int64_t width = std::min(block(), p_.columns - column), top = row_of(first_tile);
    const int64_t stride = kRounds ? kMostColumns : p_.columns;
    for (int64_t first = 0; first < p_.inner; first += kPiece) {
      const int64_t inner = std::min(kPiece, p_.inner - first);
      const W* panels = packed_ + first * whole_vectors<C>(p_.columns) + column * inner;
      const bool widen = kWidens && last_tile - first_tile > 1;
      if constexpr (kWidens)
        if (widen) widen_row(panels, inner * whole_vectors<C>(width), wide);
      alignas(64) C left[Tile::kLeftStride * kPiece];
      for (int64_t tile = first_tile; tile < last_tile; ++tile) {
        const int64_t row = row_of(tile), rows = row_of(tile + 1) - row;
        C* to = place(sums, row, row - top, column);
        if constexpr (std::is_same_v<X, C> && std::is_same_v<W, C>) {
          const StridedMatrix<const C> in_place{x_ + row * p_.inner + first, rows, inner, p_.inner,
                                                1};
          if (Tile::reads_in_place(in_place, static_cast<C>(p_.alpha), p_.columns)) {
            multiply_in_place<C>(in_place, panels, width, first > 0, to, stride);
            if (first + inner == p_.inner) finish(row, rows, column, width, to, stride);
            continue;
          }
        }
        pack_left(row, rows, first, inner, left);
        if (widen)
          multiply(left, wide, rows, inner, width, to, stride, first > 0);
        else
          multiply(left, panels, rows, inner, width, to, stride, first > 0);
        if (first + inner == p_.inner) finish(row, rows, column, width, to, stride);
      }
    }
  }

  /// Where the sums of a row are collected: in y, unless that would round them.
  C* place(C* sums, int64_t row, int64_t row_of_sums, int64_t column) const {
    if constexpr (kRounds) {
      return sums + row_of_sums * kMostColumns;
    } else {
      return y_ + row * p_.columns + column;
    }
  }

  void pack_left(int64_t row, int64_t rows, int64_t first, int64_t inner, C* to) const {
    const X* from = x_ + row * p_.inner + first;
    const auto alpha = static_cast<C>(p_.alpha);
    if constexpr (kRounds) {
      C wide[Tile::kMostRows * kPiece];
      for (int64_t i = 0; i < rows; ++i) widen_row(from + i * p_.inner, inner, wide + i * inner);
      Tile::functions(rows).pack({wide, rows, inner, inner, 1}, alpha, to);
    } else {
      Tile::functions(rows).pack({from, rows, inner, p_.inner, 1}, alpha, to);
    }
  }

  template <class Panel>
  static void multiply(const C* left, const Panel* panels, int64_t rows, int64_t inner,
                       int64_t width, C* y, int64_t stride, bool adds) {
    const auto& functions = Tile::template functions<Panel>(rows);
    int64_t column = 0;
    if (rows == 1)
      for (constexpr int64_t kWide = Tile::kAbreast * kPanelWidth<C>; column + kWide <= width;
           column += kWide)
        Tile::multiply_abreast(left, Tile::kLeftStride, panels + column * inner, inner, y + column,
                               adds);
    for (; column < width; column += kPanelWidth<C>) {
      const int64_t count = std::min(kPanelWidth<C>, width - column);
      const Panel* panel = panels + column * inner;
      if (count == kPanelWidth<C>) {
        functions.two_vectors(left, panel, inner, y + column, stride, adds);
        continue;
      }
      alignas(64) C sums[Tile::kMostRows * kPanelWidth<C>];
      const auto multiply_part =
          count > kVecCount<C> ? functions.two_vectors : functions.one_vector;
      multiply_part(left, panel, inner, sums, kPanelWidth<C>, false);
      store_columns(sums, rows, count, adds, y + column, stride);
    }
  }

  /// Adds the bias, and rounds.
  void finish(int64_t row, int64_t rows, int64_t column, int64_t width, C* sums,
              int64_t stride) const {
    if (!bias_ && !kRounds) return;
    for (int64_t i = 0; i < rows; ++i, sums += stride) {
      if (bias_) {
        const X* bias = bias_ + column;
        ORTM_SIMD
        for (int64_t j = 0; j < width; ++j) sums[j] += computed(bias[j]);
      }
      if constexpr (kRounds) store_row(y_ + (row + i) * p_.columns + column, sums, width);
    }
  }

  const Product& p_;
  int64_t tiles_;
  const X* x_;
  const W* packed_;
  const X* bias_;
  X* y_;
};

/// Multiplications worth waking a thread: few rows wait for memory.
constexpr int64_t kGrain = 1 << 22, kFewRowsGrain = 1 << 18;

template <class X, class W>
void multiply(const KernelArgs& args) {
  const auto& p = *static_cast<const Product*>(args.prepared);
  if (p.rows == 0 || p.columns == 0) return;
  const PackedBlocks<X, W> blocks(args, p);
  const int64_t grain = p.rows <= ProductTile<ComputeOf<X>>::kMostRows ? kFewRowsGrain : kGrain;
  parallel_ranges(args.context, blocks.units(),
                  ceil_div(grain, std::max<int64_t>(blocks.unit_work(), 1)),
                  [&](int64_t begin, int64_t end) { blocks.run(begin, end); });
}

void run_packed_matmul(const KernelArgs& args) {
  const DType x = args.in[0].dtype, w = args.in[1].dtype;
  switch (w) {
    case DType::Float64: return multiply<double, double>(args);
    case DType::Float32: return multiply<float, float>(args);
    case DType::Float16:
      return x == w ? multiply<Float16, Float16>(args) : multiply<float, Float16>(args);
    default: return x == w ? multiply<BFloat16, BFloat16>(args) : multiply<float, BFloat16>(args);
  }
}

std::shared_ptr<const void> prepare(const StepFacts& facts) {
  return std::make_shared<const Product>(facts);
}

REGISTER_CPU_KERNEL({.op = "PackWeights",
                     .name = "pack_weights_cpu",
                     .dtypes = kAllFloats,
                     .run = run_pack_weights,
                     .layout = LayoutRule::Any});
REGISTER_CPU_KERNEL({.op = "PackedMatMul",
                     .name = "packed_matmul_cpu",
                     .dtypes = kAllFloats,
                     .run = run_packed_matmul,
                     .prepare = prepare});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
