// PackWeights and PackedMatMul: products with a weight whose panels are packed once, not in every
// call. The panels of a piece of the inner dimension follow each other, piece after piece, so that
// any range of columns is found in any piece. Every element is one sum in the order of the inner
// dimension (in pieces), as in blocked_product.h.
#include "kernels/cpu/blocked_product.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kPiece = kInnerPiece;  // of the inner dimension

// --- PackWeights ---------------------------------------------------------------------------------
template <class C>
void pack_weights(const KernelArgs& args) {
  const TensorView& w = args.in[0];
  const StridedMatrix<const C> matrix{w.as<C>(), w.sizes[0], w.sizes[1], w.strides[0],
                                      w.strides[1]};
  C* to = args.out[0].as<C>();
  for (int64_t first = 0; first < matrix.rows; first += kPiece) {
    const int64_t count = std::min(kPiece, matrix.rows - first);
    pack_panels<C>(matrix.row_range(first, count), to);
    to += panel_elements<C>(count, matrix.columns);
  }
  // The op has room for the longest vectors of all machines.
  C* end = args.out[0].as<C>() + args.out[0].element_count();
  std::fill(to, end, C(0));
}

void run_pack_weights(const KernelArgs& args) {
  if (args.in[0].dtype == DType::Float64) return pack_weights<double>(args);
  pack_weights<float>(args);
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

/// Its units are rows of tiles in blocks of columns, block by block.
template <class C>
class PackedBlocks {
 public:
  using Tile = ProductTile<C>;

  PackedBlocks(const KernelArgs& args, const Product& p)
      : p_(p),
        tiles_(ceil_div(p.rows, Tile::kMostRows)),
        x_(args.in[0].as<C>()),
        packed_(args.in[1].as<C>()),
        bias_(args.in.size() > 2 ? args.in[2].as<C>() : nullptr),
        y_(args.out[0].as<C>()) {}

  int64_t units() const { return tiles_ * ceil_div(p_.columns, block()); }
  int64_t unit_work() const { return ceil_div(p_.rows, tiles_) * block() * p_.inner; }

  void run(int64_t begin, int64_t end) const {
    while (begin < end) {
      const int64_t block = begin / tiles_, tile = begin % tiles_;
      const int64_t tiles = std::min(tiles_ - tile, end - begin);
      run_block(tile, tile + tiles, block * this->block());
      begin += tiles;
    }
  }

 private:
  /// A block of panels stays in the second-level cache; few rows want small units for threads.
  int64_t block() const { return tiles_ > 1 ? kMostColumns : 4 * kPanelWidth<C>; }
  static constexpr int64_t kMostColumns = 1024 / sizeof(C);
  int64_t row_of(int64_t tile) const { return tile * p_.rows / tiles_; }

  void run_block(int64_t first_tile, int64_t last_tile, int64_t column) const {
    const int64_t width = std::min(block(), p_.columns - column);
    for (int64_t first = 0; first < p_.inner; first += kPiece) {
      const int64_t inner = std::min(kPiece, p_.inner - first);
      const C* panels = packed_ + first * whole_vectors<C>(p_.columns) + column * inner;
      alignas(64) C left[Tile::kLeftStride * kPiece];
      for (int64_t tile = first_tile; tile < last_tile; ++tile) {
        const int64_t row = row_of(tile), rows = row_of(tile + 1) - row;
        const StridedMatrix<const C> part{x_ + row * p_.inner + first, rows, inner, p_.inner, 1};
        Tile::functions(rows).pack(part, static_cast<C>(p_.alpha), left);
        C* y = y_ + row * p_.columns + column;
        multiply(left, panels, rows, inner, width, y, first > 0);
        if (bias_ && first + inner == p_.inner) add_bias(rows, width, bias_ + column, y);
      }
    }
  }

  void multiply(const C* left, const C* panels, int64_t rows, int64_t inner, int64_t width, C* y,
                bool adds) const {
    const auto& functions = Tile::functions(rows);
    for (int64_t column = 0; column < width; column += kPanelWidth<C>) {
      const int64_t count = std::min(kPanelWidth<C>, width - column);
      const C* panel = panels + column * inner;
      if (count == kPanelWidth<C>) {
        functions.two_vectors(left, panel, inner, y + column, p_.columns, adds);
        continue;
      }
      // Whole vectors would run over the end of a row.
      C part[Tile::kMostRows * kPanelWidth<C>];
      const auto multiply_part =
          count > kVecCount<C> ? functions.two_vectors : functions.one_vector;
      multiply_part(left, panel, inner, part, kPanelWidth<C>, false);
      for (int64_t i = 0; i < rows; ++i) {
        const C* from = part + i * kPanelWidth<C>;
        C* to = y + i * p_.columns + column;
        for (int64_t j = 0; j < count; ++j) to[j] = adds ? to[j] + from[j] : from[j];
      }
    }
  }

  void add_bias(int64_t rows, int64_t width, const C* bias, C* y) const {
    for (int64_t i = 0; i < rows; ++i) {
      C* row = y + i * p_.columns;
      ORTM_SIMD
      for (int64_t j = 0; j < width; ++j) row[j] += bias[j];
    }
  }

  const Product& p_;
  int64_t tiles_;
  const C *x_, *packed_, *bias_;
  C* y_;
};

/// Multiplications worth waking a thread: few rows wait for memory.
constexpr int64_t kGrain = 1 << 22, kFewRowsGrain = 1 << 18;

template <class C>
void multiply(const KernelArgs& args, const Product& p) {
  if (p.rows == 0 || p.columns == 0) return;
  const PackedBlocks<C> blocks(args, p);
  const int64_t grain = p.rows <= ProductTile<C>::kMostRows ? kFewRowsGrain : kGrain;
  parallel_ranges(args.context, blocks.units(),
                  ceil_div(grain, std::max<int64_t>(blocks.unit_work(), 1)),
                  [&](int64_t begin, int64_t end) { blocks.run(begin, end); });
}

void run_packed_matmul(const KernelArgs& args) {
  const auto& p = *static_cast<const Product*>(args.prepared);
  if (args.in[0].dtype == DType::Float64) return multiply<double>(args, p);
  multiply<float>(args, p);
}

std::shared_ptr<const void> prepare(const StepFacts& facts) {
  return std::make_shared<const Product>(facts);
}

REGISTER_CPU_KERNEL({.op = "PackWeights",
                     .name = "pack_weights_cpu",
                     .dtypes = kFloats,
                     .run = run_pack_weights,
                     .layout = LayoutRule::Any});
REGISTER_CPU_KERNEL({.op = "PackedMatMul",
                     .name = "packed_matmul_cpu",
                     .dtypes = kFloats,
                     .run = run_packed_matmul,
                     .prepare = prepare});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
