// Reads ONNX files of any tool. A file is not trusted: every size is checked against the file.
#pragma once

#include <string>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// Reads a model without copying its tensors: raw data stays in the mapped file, which the tensors
/// keep alive; typed fields (`float_data`) and sparse tensors are decoded. External data must be in
/// the folder of `path` or below it, links followed. Throws Error, which names the file and the
/// node or tensor.
OnnxModel read_onnx_model(const std::string& path);

/// The same from memory. `name` is for errors. Tensors with external data are looked up in
/// `folder`; if it is empty, they are an error.
OnnxModel parse_onnx_model(const SharedBytes& bytes, const std::string& name,
                           const std::string& folder = "");

}  // namespace ortmodule
