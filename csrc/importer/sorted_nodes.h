// The order in which the nodes of a model are computed.
#pragma once

#include "onnx/onnx_model.h"

namespace ortmodule {

/// Puts nodes behind those whose results they read, in subgraphs and functions as well: some tools
/// write them in another order, which onnxruntime takes, too, but for subgraphs. Otherwise the
/// order stays, and nodes of a cycle come last, where the import refuses them.
OnnxModel with_sorted_nodes(OnnxModel model);

}  // namespace ortmodule
