// y[n, o, q] = bias[o] + sum of x[n, i, p] * w[i, o, k] over channels i of the group and all p, k
// with s * p + d * k - pad = q: the gradient of Conv with respect to x

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"
#include "ops/window.h"

namespace ortmodule {

Values convert_conv_transpose(TorchCall& t) {
  ConvolutionCall call = read_convolution(t);
  const Dims zeros(call.spatial, DimExpr(0));
  call.attrs.set("output_padding", window_list(t, "output_padding", call.spatial, zeros));
  return {t.emit("ConvTranspose", std::move(call.operands), std::move(call.attrs))};
}

namespace {

void infer_conv_transpose(InferContext& c) {
  const Value& x = c.input(0);
  const Value& w = c.input(1);
  check_convolution(c);
  if (!may_equal(w.dims[0], x.dims[1]))
    c.fail(str("w must have the channels of x, but found ", dims_text(w.dims), " for ",
               dims_text(x.dims)));
  const Dims &strides = c.attrs().dims("strides"), &pads = c.attrs().dims("pads"),
             &dilations = c.attrs().dims("dilations"), &more = c.attrs().dims("output_padding");
  const size_t spatial = x.rank() - 2;
  if (strides.size() != spatial || pads.size() != 2 * spatial || dilations.size() != spatial ||
      more.size() != spatial)
    c.fail(str("strides, pads, dilations and output_padding must match ", spatial,
               " dimensions, but found ", dims_text(strides), ", ", dims_text(pads), ", ",
               dims_text(dilations), " and ", dims_text(more)));
  Dims dims = {x.dims[0], w.dims[1] * c.attrs().dim("group")};
  for (size_t i = 0; i < spatial; ++i)
    dims.push_back((x.dims[i + 2] - DimExpr(1)) * strides[i] - pads[i] - pads[spatial + i] +
                   dilations[i] * (w.dims[i + 2] - DimExpr(1)) + more[i] + DimExpr(1));
  c.set(0, x.dtype, std::move(dims));
}

void infer_conv_transpose_grad(InferContext& c) {
  const Value& x = c.input(1);
  const Value& w = c.input(2);
  c.set(0, x.dtype, x.dims);
  c.set(1, w.dtype, w.dims);
  c.set(2, w.dtype, {w.dims.at(1) * c.attrs().dim("group")});
}

// Products per element of x: channels of y in its group times window.
double transposed_product_flops(const Sizes& x, const Sizes& w) {
  const double window = static_cast<double>(element_count(w)) / static_cast<double>(w.at(0));
  return 2.0 * static_cast<double>(element_count(x)) * window;
}

double conv_transpose_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&) {
  return transposed_product_flops(in.at(0), in.at(1));
}

double conv_transpose_grad_flops(const Attrs&, const std::vector<Sizes>& in,
                                 const std::vector<Sizes>&) {
  return 2.0 * transposed_product_flops(in.at(1), in.at(2));
}

Grads conv_transpose_grad(GradContext& c) {
  return c.emit_all("ConvTransposeGrad", {c.dy(), c.x(0), c.x(1)}, c.attrs());
}

Grads conv_transpose_grad_grad(GradContext& c) { return bilinear_grad_grad(c, "ConvTranspose"); }

REGISTER_OP(ConvTranspose,
            {.inputs = {"x", "w", "bias?"},
             .outputs = {"y"},
             .attrs = {{"group", 1}},
             .kind = OpKind::MatMul,
             .infer = infer_conv_transpose,
             .keeps_channels_last = always,
             .grad = conv_transpose_grad,
             .flops = conv_transpose_flops,
             .onnx = {export_directly, {"strides", "pads", "dilations", "group", "output_padding"}},
             .from_torch = {{"aten.conv_transpose1d.default", convert_conv_transpose},
                            {"aten.conv_transpose2d.input", convert_conv_transpose},
                            {"aten.conv_transpose3d.input", convert_conv_transpose}}});

// The kernel skips unused gradients.
REGISTER_OP(ConvTransposeGrad, {.domain = "com.microsoft",
                                .inputs = {"dy", "x", "w"},
                                .outputs = {"dx", "dw", "dbias"},
                                .attrs = {{"group", 1}},
                                .kind = OpKind::MatMul,
                                .infer = infer_conv_transpose_grad,
                                .grad = conv_transpose_grad_grad,
                                .flops = conv_transpose_grad_flops});

REGISTER_ROW_AXES(rows_before<1>, "ConvTranspose");

}  // namespace
}  // namespace ortmodule
