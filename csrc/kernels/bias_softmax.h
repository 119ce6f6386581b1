// What the kernels of BiasSoftmax demand on all devices.
#pragma once

#include "kernels/axis.h"
#include "kernels/iteration.h"
#include "kernels/kernel.h"

namespace ortmodule {

/// Why softmax(x + bias) cannot run over rows, or nothing; nothing, too, while sizes are not known:
/// the fusion sees to the rest.
inline Reason bias_softmax_unsupported(const StepFacts& facts) {
  const Sizes& sizes = facts.outputs[0].layout.sizes;
  const auto rank = static_cast<int64_t>(sizes.size());
  if (rank == 0) return {};
  if (rank > kMaxRank) return str("it takes at most ", kMaxRank, " dimensions");
  if (normalized_axis(facts.node().attrs.integer("axis", -1), sizes.size()) != rank - 1)
    return "the axis is not the last one";
  if (facts.inputs[0].layout.sizes != sizes) return "x is broadcast, not the bias";
  if (facts.inputs[1].dtype != facts.inputs[0].dtype) return "x and bias differ in type";
  return {};
}

}  // namespace ortmodule
