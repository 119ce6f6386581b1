// Builds an OnnxModel: fresh names, shared constants, and sizes as tensors.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "onnx/onnx_file.h"

namespace ortmodule {

/// `value` in the bytes of one element.
std::string encode_scalar(double value, DType dtype);

/// Whether a 16-bit float holds `value` exactly.
bool is_exact_in(double value, DType dtype);

class OnnxBuilder {
 public:
  OnnxModel& model() { return model_; }

  /// Keeps `name` from being given to anything else.
  void reserve(const std::string& name) { names_.insert(name); }
  std::string fresh_name(const std::string& base);
  /// What new nodes are called after.
  void set_scope(std::string scope) { scope_ = std::move(scope); }

  /// Adds a node with the given outputs, or with one that gets a fresh name, which is returned.
  OnnxNode& add(std::string_view op, std::vector<std::string> inputs, OnnxAttrs attrs,
                std::vector<std::string> outputs);
  std::string add(std::string_view op, std::vector<std::string> inputs, OnnxAttrs attrs = {});

  /// Constants; equal ones are one node.
  std::string constant(OnnxTensor tensor);
  std::string scalar(double value, DType dtype);
  std::string integers(const std::vector<int64_t>& values);

  /// A size as an int64 tensor of shape [1], or without dims.
  std::string size(const DimExpr& dim);
  std::string size_scalar(const DimExpr& dim);
  /// Sizes as an int64 vector.
  std::string sizes(const Dims& dims);

  /// From now on sizes may be read from this tensor.
  void provide_dims(const std::string& name, const Dims& dims);

 private:
  friend struct SizeAlgebra;
  std::string symbol(const std::string& name);

  OnnxModel model_;
  std::string scope_;
  std::unordered_set<std::string> names_;
  std::unordered_map<std::string, std::string> constants_;
  std::unordered_map<std::string, std::string> sizes_;  // text of the expression -> [1]
  struct DimSource {
    std::string tensor;
    int64_t axis = 0;
    int64_t factor = 1;  // the size is factor * symbol + offset
    int64_t offset = 0;
  };
  std::unordered_map<std::string, DimSource> sources_;
};

}  // namespace ortmodule
