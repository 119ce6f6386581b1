// The end of ops on integers: real numbers, bent if `relu` is set, as they are or quantized again.
#pragma once

#include <string>

#include "ops/infer_rules.h"

namespace ortmodule {

/// The type of the result of a node with y_scale and y_zero at operands `first` and `first` + 1:
/// that of y_zero, or float32 without them. Checks them.
DType requantized_type(InferContext& c, size_t first);

/// Appends lines of a body that finish the value `real`; returns the name of the result.
std::string add_requantized(const Node& node, std::string real, size_t first, std::string& lines);

}  // namespace ortmodule
