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
