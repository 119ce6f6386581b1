// The .onnx file: a model as plain data, written and read by onnx_file.cpp, the only place that
// knows the file format. exporter/onnx_export writes graphs into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/dim_expr.h"
#include "base/dtype.h"

namespace ortmodule {

/// A constant tensor, row-major, little-endian; bool is one byte.
struct OnnxTensor {
  DType dtype = DType::Undefined;
  std::vector<int64_t> dims;
  std::string bytes;
};

/// An element type stands as ONNX's number for it.
using OnnxAttr = std::variant<int64_t, double, std::string, std::vector<int64_t>,
                              std::vector<double>, std::vector<std::string>, OnnxTensor, DType>;
using OnnxAttrs = std::vector<std::pair<std::string, OnnxAttr>>;
using OnnxMetadata = std::vector<std::pair<std::string, std::string>>;

struct OnnxNode {
  std::string op;
  std::string domain;
  std::string name;
  std::vector<std::string> inputs;  // "" for an absent one
  std::vector<std::string> outputs;
  OnnxAttrs attrs;
  OnnxMetadata metadata;
};

/// Type of a named value; a size that is no constant is written as its text.
struct OnnxValue {
  std::string name;
  DType dtype = DType::Undefined;
  Dims dims;
};

/// A parameter with its data, which the caller keeps alive until the file is written.
struct OnnxInitializer {
  std::string name;
  DType dtype = DType::Undefined;
  std::vector<int64_t> dims;
  const void* data = nullptr;
  size_t bytes = 0;
};

struct OnnxModel {
  std::string name;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxValue> inputs;
  std::vector<OnnxValue> outputs;
  std::vector<OnnxValue> values;  // types of what nodes compute
  std::vector<OnnxInitializer> initializers;
  OnnxMetadata metadata;
  /// After reading: the graph is as it was written by us; one that is not is left unread.
  bool intact = false;
};

/// Opset of the standard domain in every file that we write.
inline constexpr int kOnnxOpset = 23;

/// Writes the model; an existing file is replaced in one step. With initializers of more than
/// `external_threshold` bytes in all, their data goes to `<path>.data`. Throws Error.
void write_onnx_file(const OnnxModel& model, const std::string& path, size_t external_threshold);

/// Reads a model without the data of its initializers. Throws Error.
OnnxModel read_onnx_file(const std::string& path);

}  // namespace ortmodule
