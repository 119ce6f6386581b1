// What the body of a Loop says about its end.
#pragma once

#include <cstdint>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// Iterations of a loop that only its trip count ends.
inline constexpr int64_t kMostEndlessIterations = int64_t{1} << 24;

/// Whether the condition that the body returns is the one that it was given, or a constant. The
/// body must have an output.
bool keeps_condition(const OnnxGraph& body);

}  // namespace ortmodule
