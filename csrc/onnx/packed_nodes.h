// The nodes of a model, the types of values between them and what describes its constants, as one
// block of compressed bytes: for models that are kept for calls that may never come.
#pragma once

#include <memory>
#include <vector>

#include "base/packed_bytes.h"
#include "onnx/onnx_model.h"

namespace ortmodule {

/// Immutable. Attributes that are no integers, texts, lists of integers and tensors stay as they
/// are, as do types of other kinds than tensors, and tensors that are more than bytes somewhere.
class PackedNodes {
 public:
  /// Takes them out of the graph.
  explicit PackedNodes(OnnxGraph& graph);

  void unpack_into(OnnxGraph& graph) const;

 private:
  PackedBytes bytes_;
  OnnxAttrs attrs_;  // that stay, as do the next ones
  std::vector<OnnxValue> values_;
  std::vector<OnnxInitializer> constants_;
  std::vector<std::shared_ptr<const void>> owners_;  // of the bytes of packed tensors
};

}  // namespace ortmodule
