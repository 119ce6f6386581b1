// A product of matrices as BLAS libraries want it: leading dimensions, flips and one stride per
// batch, worked out from the operands' layouts when a plan is made. Nothing is copied: transposed
// views become flips, batch dimensions that all operands step through alike become one, and the
// others are counted through.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel.h"

namespace ortmodule {

/// One operand. In memory it is row-major, or column-major if `flipped`.
struct BlasMatrix {
  int64_t leading = 0;  // elements between rows (columns if flipped), at least one
  bool flipped = false;
  int64_t batch_stride = 0;  // elements; 0 where the operand is the same for the whole batch
};

/// Elements to add to each operand's address for one call.
struct BlasOffsets {
  int64_t a = 0, b = 0, y = 0;
};

/// y[i] = a[i] * b[i] for i < batch, once per entry of `calls`; y is [rows, columns] row-major.
struct MatMulProblem {
  int64_t rows = 0, columns = 0, inner = 0;
  int64_t batch = 1;
  BlasMatrix a, b, y;
  std::vector<BlasOffsets> calls;
};

/// The problem of a MatMul, FusedMatMul or Gemm step (attributes transA and transB), whose operands
/// keep LayoutRule::Matrix and whose result is row-major.
MatMulProblem matmul_problem(const StepFacts& facts);

}  // namespace ortmodule
