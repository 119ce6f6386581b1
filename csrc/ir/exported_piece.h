// What the front ends give the engine: a typed forward graph, and how a call's arguments and
// results map to it. The exporter makes it from torch calls, the importer from an ONNX model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace ortmodule {

/// Binding of one positional argument of the compiled piece.
struct BoundInput {
  enum class Kind : uint8_t { Tensor, Symbol };
  Kind kind = Kind::Tensor;
  int graph_input = -1;  // Tensor: index among Graph::inputs
  std::string symbol;    // Symbol: the size it binds
};

/// One flattened output of the piece, in the caller's order.
struct BoundOutput {
  enum class Kind : uint8_t { Tensor, Dim, Input, None };
  Kind kind = Kind::None;
  int graph_output = -1;  // Tensor: GraphOutput::index
  DimExpr dim;            // Dim
  int argument = -1;      // Input: the argument that is returned itself
};

/// A captured piece: the forward graph and how arguments and results map to it.
struct ExportedPiece {
  std::unique_ptr<Graph> graph;
  std::vector<BoundInput> arguments;
  std::vector<BoundOutput> results;
  std::vector<Dims> output_strides;   // per GraphOutput::index: the strides that the caller expects
  std::vector<std::string> refusals;  // why calls became ATen nodes, one line each
};

}  // namespace ortmodule
