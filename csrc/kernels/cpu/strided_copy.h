// Copies between tensors of any strides and one element size: what Contiguous, Concat, Pad,
// SliceGrad and Tile are made of.
#pragma once

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/iteration.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// A copy prepared once. Operand 0 of the space is the destination, 1 the source.
struct StridedCopy {
  IterationSpace space;
  int64_t element_bytes = 0;
  int64_t total = 0;
  bool linear = false;      // one run of bytes
  bool transposes = false;  // the source is consecutive along another dimension than the target
  int source_dim = 0;       // that dimension
};

/// `to` and `from` are strides in elements for the dimensions of `sizes`; those of `from` may be 0.
StridedCopy make_copy(const Sizes& sizes, const Sizes& to, const Sizes& from, size_t element_bytes);
void run_copy(const StridedCopy& copy, void* to, const void* from, const KernelContext& context);

}  // namespace ORTM_ISA
}  // namespace ortmodule
