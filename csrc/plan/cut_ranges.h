// Splits a backward pass into ranges; the gradients of a range go to autograd when it ends.
#pragma once

#include "plan/plan.h"

namespace ortmodule {

/// Splits a placed plan's backward pass into ranges of about equal gradient bytes. With `base`,
/// each gradient gets the range that it has there.
void cut_ranges(Plan& plan, const Plan* base = nullptr);

}  // namespace ortmodule
