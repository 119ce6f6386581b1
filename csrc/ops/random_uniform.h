// Draws for the conversions of torch's random operators.
#pragma once

#include "onnx/onnx_rule.h"
#include "ops/torch_call.h"

namespace ortmodule {

/// Refuses a call that draws from a generator of its own.
void require_default_generator(const TorchCall& t);

/// New uniform numbers of [0, 1), in the shape of the call's result.
Value* draw_uniform(TorchCall& t, DType dtype);

/// New standard normal numbers in the shape of the call's result, float32 or float64.
Value* draw_normal(TorchCall& t, DType dtype);

/// Exports a node with attributes `shape` and `dtype` as ONNX's `op`, "RandomUniform" or
/// "RandomNormal". Its numbers are the runtime's: ONNX cannot represent our stream.
void export_draw(const OnnxRuleContext& c, const std::string& op);

}  // namespace ortmodule
