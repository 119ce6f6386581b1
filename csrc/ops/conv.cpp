// y[n, o, p] = bias[o] + sum of x[n, i, s * p + d * k - pad] * w[o, i, k] over channels i of the
// group and window offsets k, with stride s and dilation d

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"
#include "ops/window.h"

namespace ortmodule {
namespace {

/// Outputs of packed weights, which have the sizes that infer_pack gives them; 0: not packed.
int64_t packed_outputs(const Attrs& attrs) {
  return attrs.has("packed_outputs") ? attrs.integer("packed_outputs") : 0;
}

void infer_packed_conv(InferContext& c, int64_t outputs) {
  const Value &x = c.input(0), &w = c.input(1);
  const DimExpr group = c.attrs().dim("group");
  const bool is_widened = x.dtype == DType::Float32 && w.dtype == DType::Float16;
  if ((x.dtype != w.dtype && !is_widened) || w.rank() != x.rank() + 1 || x.rank() < 3 ||
      !may_equal(w.dims[x.rank() - 1] * group, x.dims[1]))
    c.fail(str("x must have the type and the channels of packed weights ", name_of(w.dtype),
               dims_text(w.dims), ", but found ", name_of(x.dtype), dims_text(x.dims)));
  const Dims spatial = window_dims(c, Dims(w.dims.begin() + 1, w.dims.end() - 2));
  Dims dims = {x.dims[0], outputs};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  c.set(0, x.dtype, std::move(dims));
}

void infer_pack(InferContext& c) {
  constexpr int64_t kBlock = 16;  // kPackedOutputs of the kernel
  const Value& w = c.input(0);
  const int64_t groups = c.attrs().integer("group");
  if (w.rank() < 3 || !w.dims[0].is_constant() || groups <= 0 || w.dims[0].value() % groups != 0)
    c.fail(str("w must have a known number of outputs in ", groups, " groups, but found ",
               dims_text(w.dims)));
  const int64_t outputs = w.dims[0].value() / groups;
  const auto blocks = [](int64_t count) { return (count + kBlock - 1) / kBlock; };
  const bool by_channel = groups > 1 && outputs == 1 && w.dims[1] == DimExpr(1);
  Dims dims = {by_channel ? blocks(groups) : groups * blocks(outputs)};
  dims.insert(dims.end(), w.dims.begin() + 2, w.dims.end());
  dims.push_back(w.dims[1]);
  dims.push_back(kBlock);
  c.set(0, w.dtype, std::move(dims));
}

void infer_conv(InferContext& c) {
  if (const int64_t outputs = packed_outputs(c.attrs())) return infer_packed_conv(c, outputs);
  const Value& x = c.input(0);
  const Value& w = c.input(1);
  check_convolution(c);
  if (!may_equal(w.dims[1] * c.attrs().dim("group"), x.dims[1]))
    c.fail(str("w must have the channels of x per group, but found ", dims_text(w.dims), " for ",
               dims_text(x.dims), " in ", c.attrs().dim("group"), " groups"));
  const DimExpr groups = c.attrs().dim("group");
  if (w.dims[0].is_constant() && groups.is_constant() &&
      (groups.value() <= 0 || w.dims[0].value() % groups.value() != 0))
    c.fail(str("the outputs of w must divide into groups, but found ", dims_text(w.dims), " in ",
               groups, " groups"));
  if (c.has_input(2) && (c.input(2).rank() != 1 || !may_equal(c.input(2).dims[0], w.dims[0])))
    c.fail(str("bias must have an element for each output of w, but found ",
               dims_text(c.input(2).dims), " for ", dims_text(w.dims)));
  const Dims spatial = window_dims(c, Dims(w.dims.begin() + 2, w.dims.end()));
  Dims dims = {x.dims[0], w.dims[0]};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  c.set(0, x.dtype, std::move(dims));
}

void infer_conv_grad(InferContext& c) {
  const Value& x = c.input(1);
  const Value& w = c.input(2);
  c.set(0, x.dtype, x.dims);
  c.set(1, w.dtype, w.dims);
  c.set(2, w.dtype, {w.dims.at(0)});
}

double conv_flops(const Attrs& attrs, const std::vector<Sizes>& in, const std::vector<Sizes>& out) {
  const Sizes& w = in.at(1);
  // Products per output element: channels of the group times window.
  if (packed_outputs(attrs) > 0)
    return 2.0 * static_cast<double>(element_count(out.at(0))) *
           static_cast<double>(element_count(w)) / static_cast<double>(w.front() * w.back());
  const double window = static_cast<double>(element_count(w)) / static_cast<double>(w.at(0));
  return 2.0 * static_cast<double>(element_count(out.at(0))) * window;
}

double conv_grad_flops(const Attrs& attrs, const std::vector<Sizes>& in,
                       const std::vector<Sizes>&) {
  return 2.0 * conv_flops(attrs, {in.at(1), in.at(2)}, {in.at(0)});
}

Grads conv_grad(GradContext& c) {
  return c.emit_all("ConvGrad", {c.dy(), c.x(0), c.x(1)}, c.attrs());
}

// The gradients are bilinear: <u, dx> + <v, dw> + <w', dbias> = <dy, conv(u, w) + conv(x, v) + w'>.
Grads conv_grad_grad(GradContext& c) { return bilinear_grad_grad(c, "Conv"); }

Values convert_conv(TorchCall& t) {
  ConvolutionCall call = read_convolution(t);
  return {t.emit("Conv", std::move(call.operands), std::move(call.attrs))};
}

Values convert_convolution(TorchCall& t) {
  return t.flag("transposed") ? convert_conv_transpose(t) : convert_conv(t);
}

REGISTER_OP(Conv, {.inputs = {"x", "w", "bias?"},
                   .outputs = {"y"},
                   .attrs = {{"group", 1}},
                   .kind = OpKind::MatMul,
                   .infer = infer_conv,
                   .keeps_channels_last = always,
                   .grad = conv_grad,
                   .flops = conv_flops,
                   .onnx = {export_directly, {"strides", "pads", "dilations", "group"}},
                   .from_torch = {{"aten.conv1d.default", convert_conv},
                                  {"aten.conv2d.default", convert_conv},
                                  {"aten.conv3d.default", convert_conv},
                                  {"aten.convolution.default", convert_convolution}}});

// The weights of a convolution as our kernel on the host reads them: blocks of the outputs of a
// group, [groups x blocks, places, channels, outputs of a block]; of groups of one channel and
// output, blocks of the groups. Conv takes them with their number as `packed_outputs`.
// Packed weights of float16 are widened where images of float32 read them.
// (pack_conv_weights makes these nodes, for weights that do not change.)
REGISTER_OP(PackConvWeights, {.domain = "com.microsoft",
                              .inputs = {"w"},
                              .outputs = {"packed"},
                              .attrs = {{"group", 1}},
                              .kind = OpKind::Data,
                              .infer = infer_pack});

// The kernel skips unused gradients.
REGISTER_OP(ConvGrad, {.domain = "com.microsoft",
                       .inputs = {"dy", "x", "w"},
                       .outputs = {"dx", "dw", "dbias"},
                       .attrs = {{"group", 1}},
                       .kind = OpKind::MatMul,
                       .infer = infer_conv_grad,
                       .grad = conv_grad_grad,
                       .flops = conv_grad_flops});

REGISTER_ROW_AXES(rows_before<1>, "Conv");

}  // namespace
}  // namespace ortmodule
