// The nodes of a model, the types of values between them and what describes its constants, as one
// block of bytes, a tenth of their size: for models that are kept for calls that may never come.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// Immutable. Attributes that are no integers, texts and lists of integers stay as they are, as do
/// types of other kinds than tensors, and constants that are more than bytes somewhere.
class PackedNodes {
 public:
  /// Takes them out of the graph.
  explicit PackedNodes(OnnxGraph& graph);

  void unpack_into(OnnxGraph& graph) const;

 private:
  std::string bytes_;
  OnnxAttrs attrs_;  // that stay, as do the next ones
  std::vector<OnnxValue> values_;
  std::vector<OnnxInitializer> constants_;
  std::vector<std::shared_ptr<const void>> owners_;  // of the bytes of packed constants
};

}  // namespace ortmodule
