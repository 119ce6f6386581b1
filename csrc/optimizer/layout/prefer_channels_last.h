// Passes that choose how tensors lie in memory.
#pragma once

#include "optimizer/pass.h"

namespace ortmodule {

/// Gives 2-D convolutions channels-last operands where almost all that lies between them keeps that
/// layout, if OptimizerOptions::channels_last says that the device's convolutions gain by it.
bool prefer_channels_last(Graph& graph, PassContext& context);

/// Backward copies what is given to the graph to channels-last once more, so that the copy is not
/// kept from forward on.
bool copy_channels_last_again(Graph& graph, PassContext& context);

}  // namespace ortmodule
