// What a pointwise group is made of, for all devices: computation types, the rows of the op tables
// (pointwise_activation.h and its neighbours) and which of them a node means.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/kernel.h"
#include "kernels/micro_params.h"

namespace ortmodule {

/// Types in which values are computed: float for 16-bit floats, int64 for all integers but uint64.
enum class Compute : uint8_t { F32, F64, I64, Bool, U64 };

Compute compute_of(DType dtype);
int64_t bytes_of(Compute type);
/// Whether an element of `dtype` in memory is already of its computation type.
bool is_stored_as_computed(DType dtype);
/// Whether a float becomes such an integer by way of an int32, as in PyTorch's kernels: that
/// decides what NaN and floats out of range give.
bool is_converted_through_int32(DType dtype);

template <class T>
inline constexpr Compute kComputeOf = Compute::F32;
template <>
inline constexpr Compute kComputeOf<double> = Compute::F64;
template <>
inline constexpr Compute kComputeOf<int64_t> = Compute::I64;
template <>
inline constexpr Compute kComputeOf<bool> = Compute::Bool;

template <>
inline constexpr Compute kComputeOf<uint64_t> = Compute::U64;

/// One op at one computation type.
struct PointwiseRow {
  std::string_view name;  // op name, with ".variant" where an attribute selects the formula
  Compute in = Compute::F32;
  Compute out = Compute::F32;
  void (*configure)(const NodeFacts&, MicroParams&) = nullptr;
  bool random = false;
};

/// The row of a node (Cast has none), or null. Its operands are all of one computation type but for
/// Where's condition.
const PointwiseRow* find_pointwise_row(const NodeFacts& node);
/// The computation type that decides: that of the first operand, the second one's for Where, the
/// result's of an op without operands.
Compute deciding_type(const NodeFacts& node);
/// Why the node is not pointwise, or nothing: the same for all devices.
Reason pointwise_node_unsupported(const NodeFacts& node);

}  // namespace ortmodule
