// What a caller gives in place of parts of an ONNX file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx/onnx_model.h"

namespace ortmodule {

struct OnnxSubstitutes {
  /// Tensors in place of the main graph's initializers of these names, of the same type and sizes.
  /// External data of a replaced initializer need not exist. Other names are not read.
  std::map<std::string, OnnxTensor> initializers;
  /// Contents of external files, by the location that the model gives.
  std::map<std::string, SharedBytes> files;
};

/// A tensor in place of an initializer, of `elements` in row-major order. Those of less than a byte
/// have a byte each there, and are packed here, as in a file.
OnnxTensor substitute(int element_type, std::vector<int64_t> sizes, SharedBytes elements);

}  // namespace ortmodule
