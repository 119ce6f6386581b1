// Where copies to the host and back stand among the steps. They are placed after all others, so
// that they keep no pointwise nodes from forming a group.
#pragma once

#include <vector>

#include "lower/lower.h"

namespace ortmodule {

/// Removes the copies from `nodes`, which are of one region, and returns them.
std::vector<Node*> take_host_copies(std::vector<Node*>& nodes);

/// Puts a copy to the host behind the step that makes its value, and a copy back in front of the
/// first step that reads it. Leaves out copies back that no step reads.
void place_host_copies(std::vector<StepNodes>& steps, const std::vector<Node*>& copies);

}  // namespace ortmodule
