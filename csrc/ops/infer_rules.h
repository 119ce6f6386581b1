// Shape inference rules shared by many ops.
#pragma once

#include "ops/op_def.h"

namespace ortmodule {

/// Output 0 has the type and shape of operand 0.
void infer_same_as_input(InferContext& c);
/// Output 0 is bool with the shape of operand 0.
void infer_predicate(InferContext& c);
/// Broadcasts all operands, which must have the same type; the output has it, too.
void infer_broadcast(InferContext& c);
/// The same with a bool output, for comparisons.
void infer_broadcast_bool(InferContext& c);
/// Reduces operand 0 over attribute `axes` (empty: all), with `keepdims`; keeps its type.
void infer_reduce(InferContext& c);
/// The same without `keepdims`: reduced dimensions stay, of size 1.
void infer_reduce_kept(InferContext& c);
/// numpy.matmul of operands 0 and 1, both of rank >= 2, with attributes `transA` and `transB`.
void infer_matmul(InferContext& c);
/// Output 0 has the type and shape of operand `operand`.
template <size_t operand>
void infer_like(InferContext& c) {
  c.set(0, c.input(operand).dtype, c.input(operand).dims);
}

/// The layout of a view of all of operand 0.
inline std::optional<Layout> same_view(const Layout& in, const Attrs&, const Sizes&, size_t) {
  return in;
}

/// Operations of a product that sums over the last axis of operand 0.
double row_product_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>& out);

/// Whether it is an integer of 8 bits.
inline bool is_byte(DType dtype) { return dtype == DType::Int8 || dtype == DType::UInt8; }

/// Broadcasts two shapes. Throws Error, naming both, if they do not match: two dims must be
/// provably equal unless one of them is 1.
Dims broadcast_dims(const Dims& a, const Dims& b);
/// The same, but nullopt if they do not match.
std::optional<Dims> try_broadcast(const Dims& a, const Dims& b);

/// "[2,batch,64]"
std::string dims_text(const Dims& dims);

/// Attribute `axes` as sorted non-negative axes; all axes if it is empty.
std::vector<int64_t> reduced_axes(const Attrs& attrs, size_t rank);

/// The type of a tensor's statistics (mean, variance): f64 for f64, f32 for the other floats.
inline DType statistics_dtype(DType dtype) {
  return dtype == DType::Float64 ? DType::Float64 : DType::Float32;
}

/// Operand `operand` of a norm's gradient, which is added to dx, must have the type and shape of x,
/// operand 1.
void check_added_gradient(InferContext& c, size_t operand);

/// Gives output 0, inferred as float32, the 16-bit float of attribute `to`.
void set_rounded(InferContext& c);

}  // namespace ortmodule
