// Products of rows with a factor that is made panel by panel where it is wanted, and with the
// weights of block_weights.h.
#pragma once

#include "kernels/cpu/block_weights.h"
#include "kernels/cpu/integer_copies.h"
#include "kernels/cpu/rounded_rows.h"
#include "kernels/cpu/tiled_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Row-major x [rows, inner] and y [rows, columns] of a product.
struct ProductRows {
  const float* x = nullptr;
  float* y = nullptr;
  int64_t rows = 0, inner = 0, columns = 0;
};

/// Those of a step whose operand 0 is x, with all dimensions but the last as rows.
inline ProductRows product_rows(const KernelArgs& args) {
  const TensorView &x = args.in[0], &y = args.out[0];
  const int64_t inner = x.sizes[x.rank - 1], columns = y.sizes[y.rank - 1];
  const int64_t rows = columns == 0 ? 0 : y.element_count() / columns;
  return {x.as<float>(), y.as<float>(), rows, inner, columns};
}

/// y = x times a factor that pack(first, inner, column, width, to) packs as pack_panels does.
template <class Pack>
void multiply_panels(const KernelContext& context, const ProductRows& p, const Pack& pack) {
  constexpr int64_t kPanelGrain = 1 << 20;  // multiplications worth waking a thread
  const TiledProduct<float> product(p.rows, p.columns, p.inner);
  const auto left = [&](int64_t row, int64_t count, int64_t first, int64_t part, float* to) {
    pack_left_rows<float>(
        StridedMatrix<const float>{p.x + row * p.inner + first, count, part, p.inner, 1}, to);
  };
  const auto store = [&](int64_t row, int64_t count, int64_t column, int64_t width,
                         const float* sums, int64_t stride) {
    for (int64_t r = 0; r < count; ++r)
      std::copy_n(sums + r * stride, width, p.y + (row + r) * p.columns + column);
  };
  const int64_t each =
      std::max<int64_t>(1, ceil_div(p.rows * p.columns * p.inner, product.units()));
  parallel_ranges(context, product.units(), ceil_div(kPanelGrain, each),
                  [&](int64_t begin, int64_t end) { product.run(begin, end, left, pack, store); });
}

template <int kBits>
void multiply_few_rows(const KernelContext& context, const ProductRows& p, const BlockWeights& w) {
  using Rows = BlockRows<kBits>;
  const Rows product(w, p.x, p.inner, p.y, p.columns);
  constexpr int64_t kFewRowsGrain = 1 << 18;
  parallel_ranges(context, p.columns, ceil_div(kFewRowsGrain, std::max<int64_t>(p.inner, 1)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t row = 0; row < p.rows; row += Rows::kMostRows)
                      product.run(begin, end, row, std::min(Rows::kMostRows, p.rows - row));
                  });
}

/// y = x times the weights.
template <int kBits>
void multiply_blocks(const KernelContext& context, const ProductRows& p, const BlockWeights& w) {
  // Rows for which taking the weights apart anew for every few takes less than packing them.
  constexpr int64_t kMostStreamedRows = 16;
  if (p.rows <= kMostStreamedRows && BlockRows<kBits>::fits(w.size))
    return multiply_few_rows<kBits>(context, p, w);
  constexpr int64_t kWidth = kPanelWidth<float>;
  static_assert(TiledProduct<float>::kMostInner <= kInnerPiece);
  multiply_panels(
      context, p, [&](int64_t first, int64_t inner, int64_t column, int64_t width, float* to) {
        alignas(64) float wide[kWidth * kInnerPiece];
        for (int64_t begin = 0; begin < width; begin += kWidth) {
          const int64_t count = std::min(kWidth, width - begin);
          for (int64_t j = 0; j < count; ++j)
            widen_column<kBits>(w, column + begin + j, first, inner, wide + j * inner);
          pack_panels<float>(StridedMatrix<const float>{wide, inner, count, 1, inner}, to);
          to += inner * whole_vectors<float>(count);
        }
      });
}

#if defined(__AVX2__)

/// y = x, each block of a row rounded to 8 bits, times the weights.
template <int kBits>
void multiply_rounded(const KernelContext& context, const ProductRows& p, const BlockWeights& w) {
  if constexpr (kBits <= kMostFactorBits) {
    constexpr int64_t kRoundedGrain = 1 << 19;
    using Rows = RoundedRows<kBits>;
    const Rows product(w, p.x, p.inner, p.y, p.columns);
    parallel_ranges(context, p.columns, ceil_div(kRoundedGrain, p.inner * p.rows),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t row = 0; row < p.rows; row += Rows::kHeldRows)
                        product.run(begin, end, row, std::min(Rows::kHeldRows, p.rows - row));
                    });
  }
}

/// Why multiply_rounded() does not run a step with attributes `rounds_x`, `bits` and `block_size`.
inline Reason rounding_unsupported(const StepFacts& facts) {
  const Attrs& attrs = facts.node().attrs;
  if (!attrs.flag("rounds_x")) return "x is not to be rounded to 8 bits";
  if (attrs.integer("bits") > kMostFactorBits)
    return "the processor has no exact sums of products of 8 bits";
  const int64_t size = attrs.integer("block_size");
  if (size > RoundedRows<8>::kPiece || !std::has_single_bit(static_cast<uint64_t>(size)))
    return "the blocks are too large, or no power of two";
  return other_copy_runs(facts);
}

#endif

}  // namespace ORTM_ISA
}  // namespace ortmodule
