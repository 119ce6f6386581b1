// From when to when each storage of a plan is needed.
#pragma once

#include "plan/plan.h"

namespace ortmodule {

/// Fills first_step and last_step of every storage from the steps, and the roles that follow from
/// them (Saved; which arguments and outputs backward reads).
void find_lifetimes(Plan& plan);

}  // namespace ortmodule
