// What kernels with an operand of indices (operand 1, int64 or int32) share on all devices.
#pragma once

#include "kernels/iteration.h"
#include "kernels/kernel.h"

namespace ortmodule {

/// The least index that the step takes: 0, or -size where negative ones count from the back.
inline int64_t least_index(const StepFacts& facts, int64_t size) {
  return facts.node().attrs.integer("from_front", 0) != 0 ? 0 : -size;
}

/// Why the indices of a step cannot be read, or nothing.
inline Reason indices_unsupported(const StepFacts& facts) {
  const DType dtype = facts.inputs.at(1).dtype;
  if (dtype != DType::Int64 && dtype != DType::Int32)
    return str("indices are ", name_of(dtype), ", not int64 or int32");
  return {};
}

/// The same for GatherElements and ScatterElements, whose lines are strided.
inline Reason elements_unsupported(const StepFacts& facts) {
  if (real_rank(facts.inputs[1].layout.sizes) > kMaxRank)
    return str("it takes at most ", kMaxRank, " dimensions");
  return indices_unsupported(facts);
}
inline Reason scatter_unsupported(const StepFacts& facts) {
  const std::string reduction = facts.node().attrs.string("reduction", "add");
  if (reduction != "add" && reduction != "none") return "the reduction is " + reduction;
  return elements_unsupported(facts);
}

}  // namespace ortmodule
