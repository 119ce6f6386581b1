// The window of a convolution or pool of an ONNX model, one number per spatial dimension.
#pragma once

#include <vector>

#include "ops/onnx_call.h"

namespace ortmodule {

struct OnnxWindow {
  std::vector<int64_t> kernel, strides, dilations;
  std::vector<int64_t> begins, ends;  // padding
  bool ceil_mode = false;

  /// Begins, then ends, as the ops want them.
  Dims pads() const {
    Dims both(begins.begin(), begins.end());
    both.insert(both.end(), ends.begin(), ends.end());
    return both;
  }
};

/// The window of weights [outputs, channels, sizes...], which `kernel_shape` may repeat.
std::vector<int64_t> onnx_kernel(OnnxCall& c, const Dims& weights);

/// Reads the attributes of a window of sizes `kernel` over operand 0. Refuses those that are out of
/// range.
OnnxWindow read_onnx_window(OnnxCall& c, std::vector<int64_t> kernel);

}  // namespace ortmodule
