// Shape rules shared by many ops.
#pragma once

#include "ops/op_def.h"

namespace ortmodule {

/// Output 0 has the type and shape of operand 0.
void infer_same_as_input(InferContext& c);
/// Output 0 is bool with the shape of operand 0.
void infer_predicate(InferContext& c);
/// Right-aligned broadcasting over all operands; they have one type and give it to the output.
void infer_broadcast(InferContext& c);
/// The same with bool output: comparisons.
void infer_broadcast_bool(InferContext& c);
/// Reduction over attribute `axes` (empty: all) with `keepdims`; the type of operand 0.
void infer_reduce(InferContext& c);
/// Numpy matmul of operands 0 and 1 (rank >= 2 both), attributes `transA` and `transB` if any.
void infer_matmul(InferContext& c);
/// Output i has the type and shape of operand i: (dy, x) -> dx and the like take operand 0.
template <size_t operand>
void infer_like(InferContext& c) {
  c.set(0, c.input(operand).dtype, c.input(operand).dims);
}

/// The broadcast of two shapes; Error naming both if they do not fit. A symbolic dim against
/// another symbolic dim must be provably equal or one of them 1.
Dims broadcast_dims(const Dims& a, const Dims& b);
/// The same, or nothing if they do not fit.
std::optional<Dims> try_broadcast(const Dims& a, const Dims& b);

/// "[2,batch,64]"
std::string dims_text(const Dims& dims);

/// Attribute `axes` counted from the front, sorted; all axes if it is empty.
std::vector<int64_t> reduced_axes(const Attrs& attrs, size_t rank);

/// The type in which statistics of a tensor are kept: f64 for f64, f32 for the other floats.
inline DType statistics_dtype(DType dtype) {
  return dtype == DType::Float64 ? DType::Float64 : DType::Float32;
}

}  // namespace ortmodule
