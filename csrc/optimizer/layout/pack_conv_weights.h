// Weights of convolutions in the order in which our kernel on the host reads them.
#pragma once

#include "ir/graph.h"

namespace ortmodule {

/// Puts a PackConvWeights (PackConvTransposeWeights) between convolutions and weights that do not
/// change, so that a session packs them once instead of in every run. For graphs that run on the
/// host. Weights that the packed form would make notably larger, and those of depthwise
/// convolutions, stay as they are. Returns whether anything changed.
bool pack_conv_weights(Graph& graph);

}  // namespace ortmodule
