// Saves the graph of a model in evaluation mode as an ONNX file for other tools: inputs and outputs
// with the user's names and order, and without our metadata.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "exporter/onnx_export.h"

namespace ortmodule {

/// An input of the file.
struct SavedInput {
  std::string value;  // the graph's input; the graph lacks it if the model does not read it
  std::string name;   // in the file
  DType dtype = DType::Undefined;
  std::vector<int64_t> sizes;                // of the example
  std::map<int64_t, std::string> any_sizes;  // names of sizes that may change, by dimension
};

struct SavedModel {
  std::vector<SavedInput> inputs;
  std::vector<std::string> outputs;  // names, by output of the graph
  std::string prefix;                // of weights in the graph, which the file leaves out
  OnnxSaveOptions data;
};

/// Replaces an existing file atomically. Sizes without a name get those of the example. Throws
/// Error if a size that may change is fixed in the graph, or if an op has no ONNX form.
void save_model(const Graph& graph, const std::string& path, const SavedModel& model);

}  // namespace ortmodule
