// What kernels with an operand of indices (operand 1, int64 or int32) share on all devices.
#pragma once

#include "kernels/kernel.h"

namespace ortmodule {

/// Why the indices of a step cannot be read, or nothing.
inline Reason indices_unsupported(const StepFacts& facts) {
  const DType dtype = facts.inputs.at(1).dtype;
  if (dtype != DType::Int64 && dtype != DType::Int32)
    return str("indices are ", name_of(dtype), ", not int64 or int32");
  return {};
}

}  // namespace ortmodule
