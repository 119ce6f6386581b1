// Feeds of a call against the inputs that a model declares.
#pragma once

#include <vector>

#include "inference/host_tensor.h"
#include "onnx/onnx_model.h"

namespace ortmodule {

/// Throws Error, naming the input, if a feed is of another kind, type, rank or fixed size. `feeds`
/// by input, then by overridable input, where an empty one keeps the initializer.
void check_feeds(const std::vector<const OnnxValue*>& inputs,
                 const std::vector<const OnnxValue*>& overridable,
                 const std::vector<HostFeed>& feeds);

/// "[2,3]"
std::string sizes_text(const Sizes& sizes);

}  // namespace ortmodule
