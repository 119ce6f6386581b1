// The nodes of a model, and the types of values between them, as one block of bytes, about a fifth
// of their size: for models that are kept for calls that may never come.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// Immutable. Attributes that are no integers, texts and lists of integers stay as they are.
class PackedNodes {
 public:
  explicit PackedNodes(std::vector<OnnxNode> nodes);

  std::vector<OnnxNode> unpacked() const;

 private:
  std::string bytes_;
  OnnxAttrs attrs_;  // that stay
  std::vector<OnnxRest> rests_;
};

}  // namespace ortmodule
