// What operators do in float16: which of them have it, and where values may leave its range.
#pragma once

#include <cstddef>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// How an operator takes part in a conversion to float16.
enum class HalfRule {
  Unknown,    // it has no such form here: float32
  Silent,     // the same, and nobody asked: constants, casts, sizes, control flow
  Moves,      // elements as they are: of the type that is there already
  Computes,   // in float16
  Multiplies  // in float16, whatever its activations went through: the work of the model
};
HalfRule half_rule(const OnnxNode& node);

/// Whether input `i` has a type of its own: scales of Resize, the ratio of Dropout.
bool has_own_type(const OnnxNode& node, size_t i);
/// Whether result `i` has: the statistics of a norm.
bool has_own_result_type(const OnnxNode& node, size_t i);

/// Whether results may be beyond float16's range where operands are not: powers, sums of squares.
bool leaves_range(const OnnxNode& node);
/// Whether results are small again, whatever the operands: Softmax, Div, norms.
bool returns_to_range(const OnnxNode& node);

}  // namespace ortmodule
