// y[n, o, p] = sum of (x[n, i, s * p + d * k - pad] - x_zero) (w[o, i, k] - w_zero[o]) in 32 bits.
// What is padded counts as x_zero.

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/window.h"

namespace ortmodule {
namespace {

bool is_byte(DType dtype) { return dtype == DType::Int8 || dtype == DType::UInt8; }

void infer_conv_integer(InferContext& c) {
  const Value &x = c.input(0), &w = c.input(1);
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
  if (c.has_input(2) && (c.input(2).dtype != x.dtype || product(c.input(2).dims) != DimExpr(1)))
    c.fail(str("the zero point of x must be one ", name_of(x.dtype)));
  if (c.has_input(3) && (c.input(3).dtype != w.dtype || (product(c.input(3).dims) != DimExpr(1) &&
                                                         !may_equal(c.input(3).dims, {w.dims[0]}))))
    c.fail(str("the zero point of w must be one ", name_of(w.dtype), " or ", w.dims[0]));
  const Dims spatial = window_dims(c, Dims(w.dims.begin() + 2, w.dims.end()));
  Dims dims = {x.dims[0], w.dims[0]};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  c.set(0, DType::Int32, std::move(dims));
}

double conv_integer_flops(const Attrs&, const std::vector<Sizes>& in,
                          const std::vector<Sizes>& out) {
  const Sizes& w = in.at(1);
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

RowAxes image_rows(const RowQuery& query) { return rows_before(query, 1); }
REGISTER_ROW_AXES(image_rows, "ConvInteger");

}  // namespace
}  // namespace ortmodule
