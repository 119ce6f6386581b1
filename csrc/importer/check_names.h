// Whether the values of a model form a graph: what nodes read is there, and nothing has two
// meanings.
#pragma once

#include "onnx/onnx_model.h"

namespace ortmodule {

/// Throws Error if a node or an output reads a name that nothing has, if nodes form a cycle, or if
/// two values of a graph have one name; also in branches, loop bodies and functions. The nodes must
/// be in order; see with_sorted_nodes().
void check_names(const OnnxModel& model);

}  // namespace ortmodule
