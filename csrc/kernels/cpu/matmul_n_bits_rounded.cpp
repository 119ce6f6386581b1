// MatMulNBits with an accuracy level of 4: x is rounded to 8 bits by blocks.
#include "kernels/cpu/block_product.h"
#include "kernels/cpu/integer_copies.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

#if defined(__AVX2__)

void matmul_n_bits(const KernelArgs& args) {
  const BlockWeights w = block_weights(args);
  const ProductRows p = product_rows(args);
  if (p.rows == 0) return;
  with_bits(args.facts.node().attrs.integer("bits"),
            [&](auto bits) { multiply_rounded<decltype(bits)::value>(args.context, p, w); });
}

REGISTER_CPU_KERNEL({.op = "MatMulNBits",
                     .name = "matmul_n_bits_rounded_cpu",
                     .dtypes = {DType::Float32},
                     .run = matmul_n_bits,
                     .unsupported = rounding_unsupported,
                     .priority = 1 + kIntegerPriority});

#endif

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
