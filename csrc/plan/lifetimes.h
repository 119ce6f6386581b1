// Live ranges of the storages of a plan.
#pragma once

#include "plan/plan.h"

namespace ortmodule {

/// Computes first_step and last_step of every storage, and what follows from them: the role Saved,
/// and which arguments and outputs backward reads.
void find_lifetimes(Plan& plan);

}  // namespace ortmodule
