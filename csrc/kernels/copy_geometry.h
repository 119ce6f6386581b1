// Where the kernels that only move elements (Contiguous, Concat, Pad, SliceGrad) read and write:
// the same on all devices, whose strided copies do the rest.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/kernel.h"

namespace ortmodule {

/// A copy of `sizes` elements between two tensors: strides and first elements of both.
struct CopyGeometry {
  Sizes sizes;
  Sizes to, from;
  int64_t to_offset = 0, from_offset = 0;  // in elements
};

CopyGeometry contiguous_geometry(const StepFacts& facts);
/// Channels-last if all operands are, as in torch.
std::vector<Sizes> concat_strides(const StepFacts& facts);
/// One copy per operand.
std::vector<CopyGeometry> concat_geometry(const StepFacts& facts);
/// Negative pads cut: what remains of x is copied.
CopyGeometry pad_geometry(const StepFacts& facts);
CopyGeometry slice_grad_geometry(const StepFacts& facts);

/// Why the step has too many dimensions for a strided copy, or nothing.
Reason copy_unsupported(const StepFacts& facts);
Reason contiguous_unsupported(const StepFacts& facts);
Reason pad_unsupported(const StepFacts& facts);

/// A device's strided copy and where it begins.
template <class StridedCopy>
struct PlacedCopy {
  StridedCopy copy;
  int64_t to_bytes = 0, from_bytes = 0;

  /// `make` prepares the device's copy: make(sizes, to, from, element bytes).
  template <class Make>
  PlacedCopy(const CopyGeometry& geometry, DType dtype, const Make& make)
      : copy(make(geometry.sizes, geometry.to, geometry.from, size_of(dtype))),
        to_bytes(geometry.to_offset * static_cast<int64_t>(size_of(dtype))),
        from_bytes(geometry.from_offset * static_cast<int64_t>(size_of(dtype))) {}

  /// `run(copy, to, from, context)` between the tensors whose elements 0 these are.
  template <class Run>
  void run(const Run& run_copy, const TensorView& to, const TensorView& from,
           const KernelContext& context) const {
    run_copy(copy, to.as<std::byte>() + to_bytes, from.as<std::byte>() + from_bytes, context);
  }
};

}  // namespace ortmodule
