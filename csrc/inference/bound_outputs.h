// Outputs in memory of the caller.
#pragma once

#include <vector>

#include "inference/host_tensor.h"
#include "runtime/program.h"

namespace ortmodule {

/// Whether steps can write output `i` to such memory, if it lies apart from the arguments.
bool can_lend(const Plan& plan, size_t i, const HostTarget& target);

/// The peak of a run whose outputs are written to these targets, which lie apart from the
/// arguments: without what is lent.
int64_t peak_with_targets(const Plan& plan, const HostTargets& targets);

/// Lends the targets to the frame that the plan's steps can write to while they run. Result: by
/// output, whether it is so. The others must be copied at the end: those that are not row-major or
/// not aligned, and those that overlap an argument which a step reads after the output's memory is
/// first written. `targets` and `arguments` as in run_on_host.
std::vector<bool> lend_targets(const Plan& plan, const std::vector<const void*>& arguments,
                               const HostTargets& targets, Frame& frame);

}  // namespace ortmodule
