// Old models in a newer operator set.
#pragma once

#include "onnx/onnx_model.h"

namespace ortmodule {

/// Rewrites a model of operator set 7 to 10 in operator set 11, in which quantization begins.
/// Throws Error, which names the node, if a node has no form there that is known here.
void raise_opset(OnnxModel& model);

}  // namespace ortmodule
