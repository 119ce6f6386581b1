// In-place reuse: an output takes the memory of an operand that has its last use in the step.
#pragma once

#include "plan/plan.h"

namespace ortmodule {

/// Lets outputs reuse the storage of such an operand, where the kernel allows it. With
/// `overwrite_saved`, also that of saved activations, which allows backward to run only once (no
/// retain_graph). With `forward_is_fixed`, the storages of forward have been placed already.
void reuse_in_place(Plan& plan, bool overwrite_saved, bool forward_is_fixed);

}  // namespace ortmodule
