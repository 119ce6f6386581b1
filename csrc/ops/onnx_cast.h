// Conversions of element types as ONNX's Cast makes them, types of few bits included.
#pragma once

#include <string>

#include "ops/onnx_call.h"

namespace ortmodule {

struct OnnxCastMode {
  bool saturate = true;           // of floats of 8 bits
  std::string round_mode = "up";  // of float8e8m0
};

/// x in element type `to`. Floats to integers are truncated, and wrap around in those of few bits.
Value* onnx_cast(OnnxCall& c, Value* x, DType to, const OnnxCastMode& mode = {});

/// x as a type that ops compute with: float32 or integers of 8 bits for those of fewer.
Value* widened(OnnxCall& c, Value* x);

/// uint64 as int64 of the same order, or back: both with the highest bit flipped.
Value* flipped_order(OnnxCall& c, Value* x);

/// The integers in x, which must be in the range of the type of few bits `to`, as that type.
Value* as_narrow_integer(OnnxCall& c, Value* x, DType to);

}  // namespace ortmodule
