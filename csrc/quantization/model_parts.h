// Parts of a model as models of their own, for measurements: inner values as outputs, single nodes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// Adds values of the main graph to its outputs, those that it does not have yet. Throws Error for
/// an unknown name.
void expose_values(OnnxModel& model, const std::vector<std::string>& names);

/// Bytes of all initializers.
size_t weight_bytes(const OnnxModel& model);

/// Names of the values that a run computes and that the node with first output `output` reads: not
/// its constants.
std::vector<std::string> computed_inputs(const OnnxModel& model, const std::string& output);

/// The node whose first output is `output` with its constants, as a model. `inputs` has the type
/// (number in ONNX) and sizes of each computed input. Throws Error if there is no such node.
struct ArrayType {
  int element_type = 1;
  std::vector<int64_t> dims;
};
OnnxModel cut_node(const OnnxModel& model, const std::string& output,
                   const std::map<std::string, ArrayType>& inputs);

}  // namespace ortmodule
