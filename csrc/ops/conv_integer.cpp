// y[n, o, p] = sum of (x[n, i, s * p + d * k - pad] - x_zero) (w[o, i, k] - w_zero[o]) in 32 bits.
// What is padded counts as x_zero. ConvIntegerToFloat scales the sums, y * (x_scale * w_scale[o]) +
// bias[o], where a bias of integers is added before; with `relu` the result is bent, and with
// y_scale it is quantized again. With the attributes w_dims and w_type, w is what
// PackIntegerConvWeights makes of weights of these sizes and type: one tensor of bytes. The
// attribute channels_last chooses kernels (prefer_channels_last).

#include "base/integer_conv_weights.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/requantized.h"
#include "ops/row_axes.h"
#include "ops/window.h"

namespace ortmodule {
namespace {

// One number, or one for each channel.
void check_channels(InferContext& c, size_t i, DType dtype, const DimExpr& channels) {
  if (!c.has_input(i)) return;
  const Value& value = c.input(i);
  if (value.dtype != dtype ||
      (product(value.dims) != DimExpr(1) && !may_equal(value.dims, {channels})))
    c.fail(str("operand ", i, " must be ", name_of(dtype), " of one element or ", channels,
               ", but found ", name_of(value.dtype), dims_text(value.dims)));
}

/// The weights, packed or not.
struct WeightFacts {
  DType dtype;
  Dims dims;
  explicit WeightFacts(InferContext& c)
      : dtype(c.attrs().has("w_dims") ? c.attrs().dtype("w_type") : c.input(1).dtype),
        dims(c.attrs().has("w_dims") ? c.attrs().dims("w_dims") : c.input(1).dims) {}
  size_t rank() const { return dims.size(); }
};

// Zero points are operands `zeros` and the next one.
Dims conv_dims(InferContext& c, size_t zeros) {
  const Value& x = c.input(0);
  const WeightFacts w(c);
  if (!is_byte(x.dtype) || !is_byte(w.dtype))
    c.fail(
        str("x and w must be i8 or u8, but found ", name_of(x.dtype), " and ", name_of(w.dtype)));
  const DimExpr group = c.attrs().dim("group");
  if (x.rank() < 3 || x.rank() != w.rank() || !may_equal(w.dims[1] * group, x.dims[1]) ||
      (w.dims[0].is_constant() && group.is_constant() &&
       (group.value() <= 0 || w.dims[0].value() % group.value() != 0)))
    c.fail(
        str("x and w must have the same rank of at least 3 and as many channels per group, but "
            "found ",
            dims_text(x.dims), " and ", dims_text(w.dims), " in ", group, " groups"));
  if (c.has_input(zeros) &&
      (c.input(zeros).dtype != x.dtype || product(c.input(zeros).dims) != DimExpr(1)))
    c.fail(str("the zero point of x must be one ", name_of(x.dtype)));
  check_channels(c, zeros + 1, w.dtype, w.dims[0]);
  const Dims spatial = window_dims(c, Dims(w.dims.begin() + 2, w.dims.end()));
  Dims dims = {x.dims[0], w.dims[0]};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  return dims;
}

void infer_conv_integer(InferContext& c) { c.set(0, DType::Int32, conv_dims(c, 2)); }

// x, w, x_scale, w_scale, x_zero, w_zero, bias, y_scale, y_zero
void infer_to_float(InferContext& c) {
  Dims dims = conv_dims(c, 4);
  if (c.input(2).dtype != DType::Float32 || product(c.input(2).dims) != DimExpr(1))
    c.fail("x_scale must be one f32");
  check_channels(c, 3, DType::Float32, dims[1]);
  if (c.has_input(6)) {
    const bool integers = c.input(6).dtype == DType::Int32;
    check_channels(c, 6, integers ? DType::Int32 : DType::Float32, dims[1]);
    if (!may_equal(c.input(6).dims, {dims[1]})) c.fail("the bias must have a number per channel");
  }
  c.set(0, requantized_type(c, 7), std::move(dims));
}

double conv_integer_flops(const Attrs& attrs, const std::vector<Sizes>& in,
                          const std::vector<Sizes>& out) {
  const Sizes w = attrs.has("w_dims") ? Sizes(attrs.integers("w_dims")) : in.at(1);
  const int64_t outputs = std::max<int64_t>(w.at(0), 1);
  return 2.0 * static_cast<double>(element_count(out.at(0))) *
         static_cast<double>(element_count(w) / outputs);
}

// In float64, which is exact.
std::string conv_integer_body(const Node& node) {
  const auto has = [&](size_t i) { return i < node.inputs().size() && node.input(i); };
  std::string lines, axes;
  for (size_t d = 1; d < node.input(1)->rank(); ++d) axes += str(d > 1 ? "," : "", d);
  std::string names[2] = {"wide_x", "wide_w"};
  for (size_t i = 0; i < 2; ++i) {
    const std::string_view name = i == 0 ? "x" : "w";
    lines += str("  wide_", name, " = Cast<to=f64> (", name, ")\n");
    if (!has(i + 2)) continue;
    std::string point = str("point_", name);
    lines += str("  ", point, " = Cast<to=f64> (", name, "_zero)\n");
    if (i == 1 && node.input(3)->rank() == 1) {
      lines += str("  each_w = Unsqueeze<axes=[", axes, "]> (point_w)\n");
      point = "each_w";
    }
    names[i] = str("centred_", name);
    lines += str("  ", names[i], " = Sub (wide_", name, ", ", point, ")\n");
  }
  return str("conv_integer (x, w, x_zero, w_zero) => (y) {\n", lines,
             "  sum = Conv<strides=@strides, pads=@pads, dilations=@dilations, group=@group> (",
             names[0], ", ", names[1], ")\n  y = Cast<to=i32> (sum)\n}");
}

REGISTER_OP(ConvInteger, {.inputs = {"x", "w", "x_zero?", "w_zero?"},
                          .outputs = {"y"},
                          .attrs = {{"group", 1}},
                          .kind = OpKind::MatMul,
                          .infer = infer_conv_integer,
                          .flops = conv_integer_flops,
                          .body_of = conv_integer_body,
                          .onnx = {export_directly, {"strides", "pads", "dilations", "group"}}});

// By ConvInteger; what is one for each channel gets a place for each pixel.
std::string to_float_body(const Node& node) {
  std::string lines =
      "  sum = ConvInteger<strides=@strides, pads=@pads, dilations=@dilations, group=@group> (x, "
      "w, "
      "x_zero, w_zero)\n";
  std::string axes;
  for (size_t d = 2; d < node.input(1)->rank(); ++d) axes += str(d > 2 ? "," : "", d - 1);
  const auto spread = [&](std::string_view name, size_t i) {
    const Value* value = node.input(i);
    if (!value || product(value->dims) == DimExpr(1)) return std::string(name);
    lines += str("  each_", name, " = Unsqueeze<axes=[", axes, "]> (", name, ")\n");
    return str("each_", name);
  };
  const bool integers = node.input(6) && node.input(6)->dtype == DType::Int32;
  const std::string bias = spread("bias", 6), scale = spread("w_scale", 3);
  if (integers) lines += str("  total = Add (sum, ", bias, ")\n");
  lines += str("  real = Cast<to=f32> (", integers ? "total" : "sum", ")\n");
  lines += str("  factor = Mul (x_scale, ", scale, ")\n  scaled = Mul (real, factor)\n");
  if (!integers) lines += str("  biased = Add (scaled, ", bias, ")\n");
  const std::string y = add_requantized(node, integers ? "scaled" : "biased", 7, lines);
  return str("to_float (x, w, x_scale, w_scale, x_zero, w_zero, bias, y_scale, y_zero) => (", y,
             ") {\n", lines, "}");
}

REGISTER_OP(ConvIntegerToFloat, {.domain = "com.microsoft",
                                 .inputs = {"x", "w", "x_scale", "w_scale?", "x_zero?", "w_zero?",
                                            "bias?", "y_scale?", "y_zero?"},
                                 .outputs = {"y"},
                                 .attrs = {{"group", 1}, {"relu", 0}},
                                 .kind = OpKind::MatMul,
                                 .infer = infer_to_float,
                                 .flops = conv_integer_flops,
                                 .body_of = to_float_body});

void infer_packed_weights(InferContext& c) {
  const Value& w = c.input(0);
  if (w.rank() < 3 || !is_byte(w.dtype) ||
      !std::all_of(w.dims.begin(), w.dims.end(), [](const DimExpr& d) { return d.is_constant(); }))
    c.fail(
        str("w must be i8 or u8 of fixed sizes, but found ", name_of(w.dtype), dims_text(w.dims)));
  const Dims places(w.dims.begin() + 2, w.dims.end());
  const IntegerConvWeights packed{w.dims[0].value(), w.dims[1].value(), product(places).value()};
  const int64_t group = c.attrs().integer("group");
  if (group <= 0 || packed.outputs % group != 0)
    c.fail(str("w must have outputs for each of ", group, " groups, but found ", packed.outputs));
  const bool last = c.attrs().integer("channels_last") != 0;
  c.set(0, DType::Int8, {last ? packed.matrix_bytes(group) : packed.bytes()});
}

REGISTER_OP(PackIntegerConvWeights, {.domain = "com.microsoft",
                                     .inputs = {"w"},
                                     .outputs = {"packed"},
                                     .attrs = {{"group", 1}, {"channels_last", 0}},
                                     .kind = OpKind::Data,
                                     .infer = infer_packed_weights});

REGISTER_ROW_AXES(rows_before<1>, "ConvInteger");

}  // namespace
}  // namespace ortmodule
