// Writes the graph that a session runs as an ONNX file.
#pragma once

#include <string>
#include <vector>

#include "inference/host_tensor.h"
#include "ir/graph.h"
#include "onnx/onnx_file.h"
#include "onnx/onnx_model.h"

namespace ortmodule {

/// A model's graph after the optimizer, for the decisions of one call.
struct OptimizedModel {
  const Graph* graph = nullptr;
  /// What is fed, by tensor: the model's input, and the tensor of the call.
  std::vector<const OnnxValue*> inputs;
  std::vector<HostTensorView> tensors;
  std::vector<Dims> input_dims;  // of those, with a symbol for each size that may change
  /// By graph input after the tensors; null where no node reads them.
  std::vector<const void*> weights;
  std::vector<Sizes> weight_sizes;
  /// Names of the outputs.
  std::vector<std::string> outputs;
  OnnxDataPlacement placement;  // of the weights
};

/// Replaces an existing file atomically. Sizes that may change keep the model's names; those that
/// the graph was made for are numbers. Throws Error if a size
/// depends on the content of an input, which ONNX's operators cannot say.
void save_optimized(const OptimizedModel& model, const std::string& path);

}  // namespace ortmodule
