// Small ONNX models of C++ tests.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "inference/inference_session.h"
#include "onnx/onnx_model.h"
#include "onnx/onnx_types.h"

namespace ortmodule::testing {

inline OnnxType tensor_type(DType dtype, std::vector<OnnxDim> dims) {
  OnnxType type;
  type.kind = OnnxType::Kind::Tensor;
  type.dtype = dtype;
  type.element_type = onnx_number(dtype);
  type.dims = std::move(dims);
  return type;
}

template <class T>
OnnxTensor constant(DType dtype, std::vector<int64_t> dims, const std::vector<T>& values) {
  std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return {dtype, std::move(dims), std::move(bytes)};
}

inline OnnxNode node(std::string op, std::vector<std::string> in, std::vector<std::string> out,
                     OnnxAttrs attrs = {}) {
  OnnxNode made;
  made.op = std::move(op);
  made.inputs = std::move(in);
  made.outputs = std::move(out);
  made.attrs = std::move(attrs);
  return made;
}

inline OnnxModel model_of(std::vector<OnnxValue> inputs, std::vector<std::string> outputs,
                          std::vector<OnnxNode> nodes,
                          std::vector<OnnxInitializer> initializers = {}) {
  OnnxModel model;
  model.opsets = {{"", 21}};
  model.graph.inputs = std::move(inputs);
  for (std::string& name : outputs) model.graph.outputs.push_back({name, {}});
  model.graph.nodes = std::move(nodes);
  model.graph.initializers = std::move(initializers);
  return model;
}

/// A session of a fixed seed.
inline InferenceSession session_of(OnnxModel model, int64_t threads = 1) {
  InferenceOptions options;
  options.threads = threads;
  options.seed = 1;
  return {std::make_shared<LoadedModel>(std::move(model)), std::move(options)};
}

inline HostTensorView view(const std::vector<float>& values, Sizes sizes) {
  return {DType::Float32, std::move(sizes), values.data()};
}

}  // namespace ortmodule::testing
