// Quantizing in pointwise groups: one loop for x / scale, rounded, moved by the zero point and
// clamped.
#pragma once

#include "kernels/cpu/pointwise_op.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// The loops here read x, scale and zero point, of which the latter two are one number each: the
/// first elements of their tiles. number[0] and number[1] are the bounds. The results are those of
/// Div, Round, Add and Clip.
MicroFn quantizing();
/// The same, and dequantized again: less the zero point, times the scale.
MicroFn fake_quantizing();
/// quantizing() whose results are bytes.
MicroFn quantizing_to(DType byte);
/// (x - zero) * scale for an x of bytes.
MicroFn dequantizing(DType byte);

}  // namespace ORTM_ISA
}  // namespace ortmodule
