// Imports an ONNX model as a graph, for the sizes of a first call. The graph stays symbolic: it fits
// every call whose sizes fulfil the guards.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/layout.h"
#include "ir/exported_piece.h"
#include "onnx/onnx_model.h"
#include "ops/size_guards.h"

namespace ortmodule {

/// An input of a call, in the order of the model's inputs without an initializer.
struct ImportInput {
  DType dtype = DType::Undefined;
  Sizes sizes;
  const void* data = nullptr;  // row-major; null: the content is not known
};

struct ImportRequest {
  std::vector<ImportInput> inputs;
  /// Values of named sizes (SessionOptions.add_free_dimension_override_by_name).
  std::map<std::string, int64_t> fixed_sizes;
};

/// An element of a small integer input that sizes of the graph depend on.
struct ContentSymbol {
  std::string symbol;
  size_t input = 0;
  int64_t element = 0;
};

/// The content of a small input that the graph was imported for.
struct ContentGuard {
  size_t input = 0;
  std::string bytes;
};

struct ImportedModel {
  /// Arguments: first the symbols of `contents`, then the inputs, then `weights`.
  ExportedPiece piece;
  /// By graph input after the model's inputs. They may lie in the mapped file, at any address.
  std::vector<OnnxTensor> weights;
  std::vector<Dims> input_dims;  // with a symbol for each size that may change
  std::vector<ContentSymbol> contents;
  std::vector<ContentGuard> content_guards;
  std::vector<SizeGuard> guards;
};

/// The inputs of a call: those of the graph that have no initializer.
std::vector<const OnnxValue*> called_inputs(const OnnxGraph& graph);

/// Imports the model. It must outlive the weights of the result. Throws Error, naming every node
/// that cannot be imported and why.
ImportedModel import_model(const OnnxModel& model, const ImportRequest& request);

}  // namespace ortmodule
