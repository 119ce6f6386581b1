// Copies between tensors of one shape and any strides, for the kernels that only move elements:
// they hold no device code of their own and are compiled by the C++ compiler.
#pragma once

#include <span>

#include "kernels/iteration.h"
#include "kernels/kernel.h"

namespace ortmodule::cuda {

/// A copy prepared from layouts: `to` and `from` are strides for `sizes`, in elements.
struct StridedCopy {
  IterationSpace space;  // operand 0: to, operand 1: from
  int64_t element_bytes = 0;
  int64_t total = 0;
  bool linear = false;  // both sides are consecutive
  int source_dim = -1;  // the dimension along which the source is consecutive, if the destination
                        // is along the last one: the plane of both is transposed
};
StridedCopy make_copy(const Sizes& sizes, const Sizes& to, const Sizes& from, size_t element_bytes);

/// Enqueues the copy. Destination and source must not overlap.
void run_copy(const StridedCopy& copy, void* to, const void* from, const KernelContext& context);

/// The same copy between several pairs of addresses, none of which overlap: in one launch for each
/// kCopiesOfLaunch, unless it transposes.
struct CopyAddresses {
  void* to;
  const void* from;
};
inline constexpr size_t kCopiesOfLaunch = 8;
void run_copies(const StridedCopy& copy, std::span<const CopyAddresses> at,
                const KernelContext& context);

/// Fills the tensor's memory, which is dense, with `value` rounded to its type (complex: zero
/// only).
void fill(const TensorView& view, double value, const KernelContext& context);

}  // namespace ortmodule::cuda
