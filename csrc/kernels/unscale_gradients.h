// Gradients of a scaled loss as gradients of float32 masters; once for CPU and CUDA.
#pragma once

#include "kernels/dtype_dispatch.h"
#include "kernels/kernel.h"

namespace ortmodule {

/// The kernels' contract, for n tensors (op "UnscaleGradients", attributes `factor` and `tensors`
/// = n): output i = factor * input i, each a dense vector; inputs of one type, outputs of its
/// computation type. Output n, a single float32, becomes 1 if a product is not finite, and is left
/// alone else.
struct UnscaleOperands {
  std::span<const TensorView> in, out;

  size_t count() const { return in.size(); }
  float* found_inf() const { return out[in.size()].as<float>(); }
};

inline namespace ORTM_ISA {

/// Not 0 for infinities and NaN: all bits of the exponent are set.
ORTM_HD uint32_t not_finite(float x) { return (bits_of(x) & 0x7f800000u) == 0x7f800000u; }
ORTM_HD uint32_t not_finite(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return (bits & 0x7ff0000000000000u) == 0x7ff0000000000000u;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
