// An ONNX model as plain data. Only onnx_file.cpp knows the file format; exporter/onnx_export
// converts graphs.
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

/// A DType is written as its number in ONNX.
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

/// Type of a named value. A symbolic size is written as its text.
struct OnnxValue {
  std::string name;
  DType dtype = DType::Undefined;
  Dims dims;
};

/// A parameter. The caller keeps the data alive until the file is written.
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
  std::vector<OnnxValue> values;  // types of intermediate values
  std::vector<OnnxInitializer> initializers;
  OnnxMetadata metadata;
  /// After reading: the graph is unchanged since write_onnx_file(). If not, it is not read at all.
  bool intact = false;
};

/// Opset version of the standard domain in written files.
inline constexpr int kOnnxOpset = 23;

/// Writes the model and replaces an existing file atomically. If the initializers have more than
/// `external_threshold` bytes in total, their data goes to `<path>.data`. Throws Error.
void write_onnx_file(const OnnxModel& model, const std::string& path, size_t external_threshold);

/// Reads a model without the data of its initializers. Throws Error.
OnnxModel read_onnx_file(const std::string& path);

}  // namespace ortmodule
