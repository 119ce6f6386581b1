// Saves a graph as an .onnx file that other tools can check and run, and loads it again.
//
// The file uses standard ONNX where possible: sizes used as data become chains of Shape and
// arithmetic, other ops are decomposed, and only gradients and ATen calls are nodes of custom
// domains. What ONNX cannot represent (kinds of inputs, exact numbers, size expressions, source
// lines) is in the metadata in our text notation: `ortmodule.graph` of the model is the graph's
// signature; `ortmodule.node` is on the last of the ONNX nodes that a graph node became. Loading
// uses this text, so it restores exactly the graph that was saved.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>

#include "ir/graph.h"
#include "onnx/onnx_file.h"
#include "onnx/onnx_model.h"

namespace ortmodule {

/// Row-major data of an input. The caller keeps it alive.
struct OnnxTensorData {
  const void* data = nullptr;
  size_t bytes = 0;
};

struct OnnxSaveOptions {
  /// Data of the inputs (parameters, buffers, constants) to write as initializers, by name.
  std::unordered_map<std::string, OnnxTensorData> initializers;
  OnnxDataPlacement placement;
};

/// Converts the graph to ONNX. The types of all values must be set.
OnnxModel lower_to_onnx(const Graph& graph, const OnnxSaveOptions& options = {});

/// Writes the graph and replaces an existing file atomically. Throws Error.
void save_onnx(const Graph& graph, const std::string& path, const OnnxSaveOptions& options = {});

/// Reads a file written by save_onnx. Throws Error if its graph was edited since.
std::unique_ptr<Graph> load_onnx(const std::string& path);

}  // namespace ortmodule
