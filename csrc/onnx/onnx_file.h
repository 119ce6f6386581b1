// Writes ONNX files. onnx_reader.h reads them; exporter/onnx_export converts graphs.
#pragma once

#include <cstddef>
#include <string>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// Opset version of the standard domain in files that we write.
inline constexpr int kOnnxOpset = 23;

/// Writes the model and replaces an existing file atomically. Without `model.opsets`, those that
/// our export uses are written. If the initializers have more than `external_threshold` bytes in
/// total, their data goes to `<path>.data`. Throws Error.
void write_onnx_file(const OnnxModel& model, const std::string& path, size_t external_threshold);

}  // namespace ortmodule
