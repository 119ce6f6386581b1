// Sliding windows of convolutions and pools: sizes and torch arguments.
#pragma once

#include "ops/grad_context.h"
#include "ops/infer_rules.h"
#include "ops/torch_call.h"

namespace ortmodule {

/// Spatial output sizes of windows `kernel` over x [N, C, ...], with attributes `strides`, `pads`
/// (begins, then ends), `dilations` and `ceil_mode` (as in torch.nn.MaxPool2d).
Dims window_dims(InferContext& c, const Dims& kernel);

/// A list argument with one number for all or one for each of the `spatial` dimensions; `fallback`
/// if it is empty.
Dims window_list(const TorchCall& t, std::string_view name, size_t spatial, const Dims& fallback);

/// torch's symmetric padding as begins, then ends.
Dims symmetric_pads(const Dims& padding);

/// Throws Error unless operands 0 and 1 of a convolution, x and w, have the same type, and the same
/// rank of at least 3.
void check_convolution(InferContext& c);

/// Arguments common to convolutions and transposed convolutions.
struct ConvolutionCall {
  Values operands;  // x, w, bias
  Attrs attrs;      // strides, pads, dilations, group
  size_t spatial = 0;
};

/// Reads the arguments of aten.convolution. Refuses unsupported ones.
ConvolutionCall read_convolution(TorchCall& t);

/// The gradients of <op>Grad (dy, x, w) -> dx, dw, dbias, where `op` is linear in x and in w: with
/// the gradients u, v and b of these, dy gets op(u, w) + op(x, v) + b, x the data gradient of (dy,
/// v), and w the weight gradient of (dy, u).
Grads bilinear_grad_grad(GradContext& c, std::string_view op);

/// Converts a transposed convolution; aten.convolution can be one, too.
Values convert_conv_transpose(TorchCall& t);

}  // namespace ortmodule
