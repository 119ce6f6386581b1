// Weights of a few bits, for import rules.
#pragma once

#include "ops/onnx_call.h"

namespace ortmodule {

/// Each byte's numbers of `bits` bits, the lowest first, in one more dimension.
Value* unpacked_bits(OnnxCall& c, Value* bytes, int64_t bits);

}  // namespace ortmodule
