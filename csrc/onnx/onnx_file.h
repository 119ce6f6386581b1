// Writes ONNX files. onnx_reader.h reads them; exporter/onnx_export converts graphs.
#pragma once

#include <cstddef>
#include <string>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// Opset version of the standard domain in files that we write.
inline constexpr int kOnnxOpset = 23;

/// Where the data of initializers go: a file beside the model, if they have more bytes in total
/// than `threshold` and any has `least_bytes`. Smaller ones stay in the model.
struct OnnxDataPlacement {
  size_t threshold = size_t{1} << 30;
  size_t least_bytes = 1024;
  std::string file =
      {};  // a path relative to the model's folder; empty: `<name of the model>.data`
};

/// Writes the model and replaces an existing file atomically. Without `model.opsets`, those that
/// our export uses are written. Throws Error.
void write_onnx_file(const OnnxModel& model, const std::string& path,
                     const OnnxDataPlacement& placement);

}  // namespace ortmodule
