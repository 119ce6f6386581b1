// The ranges in which a backward pass hands over its gradients.
#pragma once

#include "plan/plan.h"

namespace ortmodule {

/// Cuts a placed plan's backward pass into ranges of about equal gradient bytes, or, with `base`,
/// at the same gradients as `base`; see the source.
void cut_ranges(Plan& plan, const Plan* base = nullptr);

}  // namespace ortmodule
