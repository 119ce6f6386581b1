// MatMulNBits with an accuracy level of 4: x is rounded to 8 bits by blocks.
#include "kernels/cpu/block_product.h"
#include "kernels/cpu/integer_copies.h"
#include "kernels/cpu/rounded_panels.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

#if defined(__AVX2__)

// Rows for which laying columns of the weights side by side takes less than it saves.
template <int kBits>
constexpr int64_t kPanelRows = kBits == 2   ? 40
                               : kBits == 4 ? 20
                                            : 10;

int64_t rows_of(const StepFacts& facts) {
  const Sizes& sizes = facts.outputs[0].layout.sizes;
  return sizes.back() == 0 ? 0 : element_count(sizes) / sizes.back();
}

// Rows that are rounded once for all columns.
size_t workspace_bytes(const StepFacts& facts) {
  const int64_t rows = rows_of(facts);
  const Attrs& attrs = facts.node().attrs;
  size_t bytes = 0;
  with_bits(attrs.integer("bits"), [&](auto bits) {
    if (rows >= kPanelRows<decltype(bits)::value>)
      bytes = RoundedInput::bytes(rows, attrs.integer("K"), attrs.integer("block_size"));
  });
  return bytes;
}

template <int kBits>
void multiply_many(const KernelArgs& args, const ProductRows& p, const BlockWeights& w) {
  if constexpr (kBits <= kMostFactorBits) {
    constexpr int64_t kRoundedGrain = 1 << 19;
    const RoundedInput x(p.rows, p.inner, w.size, args.workspace);
    parallel_ranges(args.context, p.rows, grain_for(p.inner), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) x.round(row, p.x + row * p.inner);
    });
    using Panels = RoundedPanels<kBits>;
    const Panels product(w, x, p.rows, p.y, p.columns);
    parallel_ranges(args.context, product.units(),
                    ceil_div(kRoundedGrain, p.inner * p.rows * Panels::kColumns),
                    [&](int64_t begin, int64_t end) { product.run(begin, end); });
  }
}

void matmul_n_bits(const KernelArgs& args) {
  const BlockWeights w = block_weights(args);
  const ProductRows p = product_rows(args);
  if (p.rows == 0) return;
  with_bits(args.facts.node().attrs.integer("bits"), [&](auto bits) {
    constexpr int kBits = decltype(bits)::value;
    p.rows < kPanelRows<kBits> ? multiply_rounded<kBits>(args.context, p, w)
                               : multiply_many<kBits>(args, p, w);
  });
}

REGISTER_CPU_KERNEL({.op = "MatMulNBits",
                     .name = "matmul_n_bits_rounded_cpu",
                     .dtypes = {DType::Float32},
                     .run = matmul_n_bits,
                     .unsupported = rounding_unsupported,
                     .workspace_bytes = workspace_bytes,
                     .priority = 1 + kIntegerPriority});

#endif

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
