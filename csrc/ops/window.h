// Sizes of sliding windows: convolution and pooling.
#pragma once

#include "ops/infer_rules.h"
#include "ops/torch_call.h"

namespace ortmodule {

/// Spatial sizes of windows `kernel` over x [N, C, ...] with attributes `strides`, `pads` (begins,
/// then ends), `dilations` and `ceil_mode` (a last window that begins inside is kept).
Dims window_dims(InferContext& c, const Dims& kernel);

/// A list argument of a window, one number for all `spatial` dimensions or one for each, `fallback`
/// if it is empty.
Dims window_list(const TorchCall& t, std::string_view name, size_t spatial, const Dims& fallback);

/// torch's symmetric padding as begins, then ends.
Dims symmetric_pads(const Dims& padding);

/// Fails unless x and w, operands 0 and 1 of a convolution, have one type and one rank of 3 or
/// more.
void check_convolution(InferContext& c);

/// What a convolution and a transposed one take alike.
struct ConvolutionCall {
  Values operands;  // x, w, bias
  Attrs attrs;      // strides, pads, dilations, group
  size_t spatial = 0;
};

/// Refuses a call that has no op.
ConvolutionCall read_convolution(TorchCall& t);

/// A transposed convolution, which aten.convolution may be as well.
Values convert_conv_transpose(TorchCall& t);

}  // namespace ortmodule
