// MatMulNBits with an accuracy level of 4: x is rounded to 8 bits by blocks.
#include "kernels/cpu/block_product.h"
#include "kernels/cpu/integer_copies.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

#if defined(__AVX2__)

void matmul_n_bits(const KernelArgs& args) {
  const BlockWeights w = block_weights(args);
  const TensorView &x = args.in[0], &y = args.out[0];
  const int64_t inner = x.sizes[x.rank - 1], columns = y.sizes[y.rank - 1];
  const int64_t rows = columns == 0 ? 0 : y.element_count() / columns;
  if (rows == 0) return;
  const ProductRows p{x.as<float>(), y.as<float>(), rows, inner, columns};
  switch (args.facts.node().attrs.integer("bits")) {
    case 2: return multiply_rounded<2>(args.context, p, w);
    case 4: return multiply_rounded<4>(args.context, p, w);
    default: return multiply_rounded<8>(args.context, p, w);
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
