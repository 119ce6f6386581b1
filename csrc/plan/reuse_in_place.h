// Results that take the memory of an operand which dies in the same step.
#pragma once

#include "plan/plan.h"

namespace ortmodule {

/// Lets outputs of kernels that allow it take the storage of a dying operand. Only a pass that may
/// not run again (no retain_graph) overwrites what forward saved. With `forward_is_fixed`, forward
/// has been placed already, for another backward.
void reuse_in_place(Plan& plan, bool overwrite_saved, bool forward_is_fixed);

}  // namespace ortmodule
