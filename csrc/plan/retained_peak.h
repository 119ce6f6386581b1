// The peak of a run whose backward pass keeps what it read (retain_graph).
#pragma once

#include "plan/plan.h"

namespace ortmodule {

/// As Plan::peak_bytes, for a run in which saved segments outlive their last use.
int64_t retained_peak_bytes(const Plan& plan);

/// As Plan::peak_bytes, for a run whose gradients are added to existing ones and freed as soon as
/// their range is done: what the step takes besides the gradients themselves.
int64_t accumulating_peak_bytes(const Plan& plan);

/// Bytes of the gradients that one backward pass hands to the caller.
int64_t gradient_bytes(const Plan& plan);

}  // namespace ortmodule
