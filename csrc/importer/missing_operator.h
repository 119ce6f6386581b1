// Why an operator has no rule: it is not one of ONNX's, or the engine lacks it.
#pragma once

#include <cstdint>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// Throws Refused for an operator that ONNX does not have, Unsupported for one that the engine
/// lacks.
[[noreturn]] void refuse_operator(const OnnxNode& node, int64_t opset);

}  // namespace ortmodule
