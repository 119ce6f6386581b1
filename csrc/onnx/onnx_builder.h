// Builds an OnnxModel: unique names, shared constants, and sizes as tensors.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "onnx/onnx_model.h"

namespace ortmodule {

/// The bytes of `value` as an element of type `dtype`.
std::string encode_scalar(double value, DType dtype);

/// Whether `dtype` represents `value` exactly; only checked for 16-bit floats.
bool is_exact_in(double value, DType dtype);

/// A value that is a tensor. A symbolic size becomes a named one.
OnnxValue onnx_value(const std::string& name, DType dtype, const Dims& dims);

class OnnxBuilder {
 public:
  OnnxModel& model() { return model_; }
  OnnxGraph& graph() { return model_.graph; }

  /// Excludes `name` from fresh names.
  void reserve(const std::string& name) { names_.insert(name); }
  std::string fresh_name(const std::string& base);
  /// Prefix of the names of new nodes.
  void set_scope(std::string scope) { scope_ = std::move(scope); }

  /// Adds a node with the given outputs, or with one output, whose fresh name is returned.
  OnnxNode& add(std::string_view op, std::vector<std::string> inputs, OnnxAttrs attrs,
                std::vector<std::string> outputs);
  std::string add(std::string_view op, std::vector<std::string> inputs, OnnxAttrs attrs = {});

  /// Constant nodes; equal constants share one.
  std::string constant(OnnxTensor tensor);
  std::string scalar(double value, DType dtype);
  std::string integers(const std::vector<int64_t>& values);

  /// A size as an int64 tensor of shape [1].
  std::string size(const DimExpr& dim);
  /// A size as an int64 tensor without dims.
  std::string size_scalar(const DimExpr& dim);
  /// Sizes as an int64 vector.
  std::string sizes(const Dims& dims);

  /// Lets symbols be computed from the shape of this tensor from now on.
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
