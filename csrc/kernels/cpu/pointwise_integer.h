// Pointwise groups whose integers are all of one type of less than 64 bits: tiles hold that type,
// and loops read and write memory in place.
#pragma once

#include <optional>

#include "kernels/cpu/pointwise_op.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// The type in which all integers of a group are computed instead of int64, with the same results:
/// every op has a loop for it. Nothing for other groups.
std::optional<DType> integer_of_group(const StepFacts& facts);
/// The loop of a row of int64 for a narrower integer; null if there is none.
MicroFn integer_loop(std::string_view name, DType integer);
/// From such an integer to the computation type of `to`, or to such an integer; null if there is
/// none.
MicroFn integer_conversion(DType from, DType to);

}  // namespace ORTM_ISA
}  // namespace ortmodule
