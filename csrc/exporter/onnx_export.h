// A graph as an .onnx file that other tools can check and run, and back.
//
// What ONNX can say is said in ONNX: sizes used as data become Shape/Gather-like chains, ops that
// the standard lacks become what they are made of, and only gradients and ATen calls keep nodes of
// their own domains. What ONNX cannot say (kinds of inputs, exact numbers, size expressions, source
// lines) stands as our text notation in the metadata: `ortmodule.graph` of the model is the graph's
// signature, and `ortmodule.node` of a node is the graph's node that ends there; the nodes before
// it belong to it. Reading uses the text, so it gives back the very graph that was written.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>

#include "ir/graph.h"
#include "onnx/onnx_file.h"

namespace ortmodule {

/// Row-major data of an input, kept alive by the caller.
struct OnnxTensorData {
  const void* data = nullptr;
  size_t bytes = 0;
};

struct OnnxSaveOptions {
  /// Inputs (parameters, buffers, constants) by name that are written as initializers.
  std::unordered_map<std::string, OnnxTensorData> initializers;
  /// Above so many bytes of them, their data goes to a second file, `<path>.data`.
  size_t external_threshold = size_t{1} << 30;
};

/// The graph in ONNX's form. Types of all values must be set.
OnnxModel lower_to_onnx(const Graph& graph, const OnnxSaveOptions& options = {});

/// Writes the graph; an existing file is replaced in one step. Throws Error.
void save_onnx(const Graph& graph, const std::string& path, const OnnxSaveOptions& options = {});

/// Reads a file that save_onnx wrote and nobody edited since. Throws Error.
std::unique_ptr<Graph> load_onnx(const std::string& path);

}  // namespace ortmodule
