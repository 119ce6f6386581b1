// MatMulNBits with an accuracy level of 4: x is rounded to 8 bits by blocks.
#include "kernels/cpu/integer_copies.h"
#include "kernels/cpu/rounded_rows.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

#if defined(__AVX2__)

/// A tile of columns stays in the second-level cache while all rows pass.
constexpr int64_t kTileBytes = 256 << 10;
/// Multiplications worth waking a thread.
constexpr int64_t kGrain = 1 << 19;

template <int kBits>
void multiply(const KernelArgs& args, const BlockWeights& w) {
  using Rows = RoundedRows<kBits>;
  const TensorView &x = args.in[0], &y = args.out[0];
  const int64_t inner = x.sizes[x.rank - 1], columns = y.sizes[y.rank - 1];
  const int64_t rows = columns == 0 ? 0 : y.element_count() / columns;
  if (rows == 0) return;
  const Rows product(w, x.as<float>(), inner, y.as<float>(), columns);
  const int64_t column_bytes = w.count * (w.size / Rows::kEach + int64_t{sizeof(float)});
  const int64_t tile = std::max<int64_t>(1, kTileBytes / column_bytes);
  parallel_ranges(args.context, columns, ceil_div(kGrain, inner * rows),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t column = begin; column < end; column += tile)
                      for (int64_t row = 0; row < rows; row += Rows::kMostRows)
                        product.run(column, std::min(end, column + tile), row,
                                    std::min(Rows::kMostRows, rows - row));
                  });
}

void matmul_n_bits(const KernelArgs& args) {
  const BlockWeights w = block_weights(args);
  switch (args.facts.node().attrs.integer("bits")) {
    case 2: return multiply<2>(args, w);
    case 4: return multiply<4>(args, w);
    default:
      if constexpr (kMostFactorBits == 8) multiply<8>(args, w);
  }
}

Reason unsupported(const StepFacts& facts) {
  const Attrs& attrs = facts.node().attrs;
  if (!attrs.flag("rounds_x")) return "x is not to be rounded to 8 bits";
  if (attrs.integer("bits") > kMostFactorBits)
    return "the processor has no exact sums of products of 8 bits";
  if (attrs.integer("block_size") > RoundedRows<8>::kPiece) return "the blocks are too large";
  return other_copy_runs(facts);
}

REGISTER_CPU_KERNEL({.op = "MatMulNBits",
                     .name = "matmul_n_bits_rounded_cpu",
                     .dtypes = {DType::Float32},
                     .run = matmul_n_bits,
                     .unsupported = unsupported,
                     .priority = 1 + kIntegerPriority});

#endif

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
