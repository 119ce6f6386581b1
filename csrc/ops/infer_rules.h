// Shape rules shared by many ops.
#pragma once

#include "ops/op_def.h"

namespace ortmodule {

/// Output 0 has the type and shape of operand 0.
void infer_same_as_input(InferContext& c);
/// Right-aligned broadcasting over all operands; the type of operand 0.
void infer_broadcast(InferContext& c);
/// The same with bool output: comparisons.
void infer_broadcast_bool(InferContext& c);
/// Reduction over attribute `axes` (empty: all) with `keepdims`; the type of operand 0.
void infer_reduce(InferContext& c);
/// Numpy matmul of operands 0 and 1 (rank >= 2 both).
void infer_matmul(InferContext& c);

/// The broadcast of two shapes; Error naming both if they do not fit. A symbolic dim against
/// another symbolic dim must be provably equal or one of them 1.
Dims broadcast_dims(const Dims& a, const Dims& b);

}  // namespace ortmodule
