// Reads ONNX files of any tool. A file is not trusted: every size is checked against the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "onnx/mapped_file.h"
#include "onnx/onnx_model.h"
#include "onnx/onnx_substitutes.h"

namespace ortmodule {

/// What a file says about its model besides what runs.
struct OnnxFacts {
  std::string domain;
  std::string doc;
  std::string graph_doc;
  int64_t version = std::numeric_limits<int64_t>::max();  // not given, as in onnxruntime
  /// What the sizes of inputs denote ("DATA_BATCH"), by name of the input and axis.
  std::map<std::string, std::map<size_t, std::string>> denotations;
};

/// Reads a model without copying its tensors: raw data stays in the mapped file, which the tensors
/// keep alive; typed fields (`float_data`) and sparse tensors are decoded. External data must be in
/// the folder of `path` or below it, links followed. Throws Error, which names the file and the
/// node or tensor. `files`, if given, receives that file, then those of external data.
OnnxModel read_onnx_model(const std::string& path, const OnnxSubstitutes& given = {},
                          OnnxFacts* facts = nullptr, MappedFiles* files = nullptr);

/// The same from memory. Tensors are copied, each to memory of its own, if the bytes have no owner
/// that keeps them alive. `name` is for errors. Tensors with external data are looked up in
/// `folder`; if it is empty, they are an error.
OnnxModel parse_onnx_model(const SharedBytes& bytes, const std::string& name,
                           const std::string& folder = "", const OnnxSubstitutes& given = {},
                           OnnxFacts* facts = nullptr);

}  // namespace ortmodule
