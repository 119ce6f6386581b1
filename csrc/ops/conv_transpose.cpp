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

/// Channels of x and y, and the window, as the weights have them.
struct WeightDims {
  DimExpr channels, outputs;
  Dims window;
};

/// Of w, or of packed weights, which have the sizes that infer_pack_transposed gives them.
WeightDims weight_dims(InferContext& c) {
  const Value &x = c.input(0), &w = c.input(1);
  const DimExpr group = c.attrs().dim("group");
  if (!c.attrs().has("packed_outputs")) {
    check_convolution(c);
    return {w.dims[0], w.dims[1] * group, Dims(w.dims.begin() + 2, w.dims.end())};
  }
  if (w.dtype != x.dtype || w.rank() != x.rank() + 1 || x.rank() < 3)
    c.fail(str("x must have the type of packed weights ", name_of(w.dtype), dims_text(w.dims),
               ", but found ", name_of(x.dtype), dims_text(x.dims)));
  return {w.dims[x.rank() - 1] * group, c.attrs().dim("packed_outputs"),
          Dims(w.dims.begin() + 1, w.dims.end() - 2)};
}

void infer_conv_transpose(InferContext& c) {
  const Value& x = c.input(0);
  const WeightDims w = weight_dims(c);
  if (!may_equal(w.channels, x.dims[1]))
    c.fail(str("w must have the channels of x, but found ", dims_text(c.input(1).dims), " for ",
               dims_text(x.dims)));
  const Dims &strides = c.attrs().dims("strides"), &pads = c.attrs().dims("pads"),
             &dilations = c.attrs().dims("dilations"), &more = c.attrs().dims("output_padding");
  const size_t spatial = x.rank() - 2;
  if (strides.size() != spatial || pads.size() != 2 * spatial || dilations.size() != spatial ||
      more.size() != spatial)
    c.fail(str("strides, pads, dilations and output_padding must match ", spatial,
               " dimensions, but found ", dims_text(strides), ", ", dims_text(pads), ", ",
               dims_text(dilations), " and ", dims_text(more)));
  Dims dims = {x.dims[0], w.outputs};
  for (size_t i = 0; i < spatial; ++i)
    dims.push_back((x.dims[i + 2] - DimExpr(1)) * strides[i] - pads[i] - pads[spatial + i] +
                   dilations[i] * (w.window[i] - DimExpr(1)) + more[i] + DimExpr(1));
  c.set(0, x.dtype, std::move(dims));
}

void infer_pack_transposed(InferContext& c) {
  constexpr int64_t kBlock = 16;  // kPackedOutputs of the kernel
  const Value& w = c.input(0);
  const int64_t groups = c.attrs().integer("group");
  if (w.rank() < 3 || !w.dims[1].is_constant() || !w.dims[0].is_constant() || groups <= 0 ||
      w.dims[0].value() % groups != 0)
    c.fail(str("w must have known numbers of outputs, and of channels in ", groups,
               " groups, but found ", dims_text(w.dims)));
  Dims dims = {groups * ((w.dims[1].value() + kBlock - 1) / kBlock)};
  dims.insert(dims.end(), w.dims.begin() + 2, w.dims.end());
  dims.push_back(w.dims[0].value() / groups);
  dims.push_back(kBlock);
  c.set(0, w.dtype, std::move(dims));
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

double conv_transpose_flops(const Attrs& attrs, const std::vector<Sizes>& in,
                            const std::vector<Sizes>&) {
  if (attrs.has("packed_outputs")) {
    const Sizes &x = in.at(0), &w = in.at(1);  // [blocks, window, channels, outputs of a block]
    const double each = static_cast<double>(element_count(w)) / static_cast<double>(x.at(1));
    return 2.0 * static_cast<double>(element_count(x)) * each;
  }
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

// The weights as our kernel on the host reads them: for outputs that leave the same remainders
// modulo the strides, one after another, blocks of outputs with the places of the window that these
// see. ConvTranspose takes them with the number of its outputs as `packed_outputs`.
// (pack_conv_weights makes these nodes, for weights that do not change.)
REGISTER_OP(PackConvTransposeWeights, {.domain = "com.microsoft",
                                       .inputs = {"w"},
                                       .outputs = {"packed"},
                                       .attrs = {{"group", 1}},
                                       .kind = OpKind::Data,
                                       .infer = infer_pack_transposed});

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
