// Names that nodes read and do not define.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// The values from outside that a subgraph reads, those of its own subgraphs included, each once.
std::vector<std::string> free_names(const OnnxGraph& graph);

/// The values that the nodes from `first` on read and that come from before them.
std::vector<std::string> free_names(const std::vector<OnnxNode>& nodes, size_t first);

}  // namespace ortmodule
