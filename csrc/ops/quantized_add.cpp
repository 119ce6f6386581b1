// y = clamp(round(((a - a_zero) a_scale + (b - b_zero) b_scale) / y_scale) + y_zero), bent before
// by `relu`: a sum of dequantized tensors of the same sizes that is quantized again.

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/requantized.h"
#include "ops/row_axes.h"

namespace ortmodule {
namespace {

// a, b, a_scale, b_scale, a_zero, b_zero, y_scale, y_zero
void infer_quantized_add(InferContext& c) {
  for (size_t i = 0; i < 2; ++i) {
    const Value &q = c.input(i), &scale = c.input(i + 2);
    if (!is_byte(q.dtype) || !may_equal(q.dims, c.input(0).dims))
      c.fail(str("a and b must be i8 or u8 of the same sizes, but found ", name_of(q.dtype),
                 dims_text(q.dims)));
    if (scale.dtype != DType::Float32 || product(scale.dims) != DimExpr(1))
      c.fail("a scale must be one f32");
    if (c.has_input(i + 4) &&
        (c.input(i + 4).dtype != q.dtype || product(c.input(i + 4).dims) != DimExpr(1)))
      c.fail(str("a zero point must be one ", name_of(q.dtype)));
  }
  c.set(0, requantized_type(c, 6), c.input(0).dims);
}

std::string quantized_add_body(const Node& node) {
  std::string lines;
  for (size_t i = 0; i < 2; ++i) {
    const std::string name = i == 0 ? "a" : "b";
    lines += str("  wide_", name, " = Cast<to=f32> (", name, ")\n");
    std::string centred = "wide_" + name;
    if (node.input(i + 4)) {
      lines += str("  point_", name, " = Cast<to=f32> (", name, "_zero)\n  centred_", name,
                   " = Sub (wide_", name, ", point_", name, ")\n");
      centred = "centred_" + name;
    }
    lines += str("  real_", name, " = Mul (", centred, ", ", name, "_scale)\n");
  }
  lines += "  sum = Add (real_a, real_b)\n";
  const std::string y = add_requantized(node, "sum", 6, lines);
  return str("quantized_add (a, b, a_scale, b_scale, a_zero, b_zero, y_scale, y_zero) => (", y,
             ") {\n", lines, "}");
}

REGISTER_OP(QuantizedAdd,
            {.domain = "com.microsoft",
             .inputs = {"a", "b", "a_scale", "b_scale", "a_zero?", "b_zero?", "y_scale", "y_zero"},
             .outputs = {"y"},
             .attrs = {{"relu", 0}},
             .kind = OpKind::Opaque,
             .infer = infer_quantized_add,
             .keeps_channels_last = always,
             .body_of = quantized_add_body});

REGISTER_ROW_AXES(rows_elementwise, "QuantizedAdd");

}  // namespace
}  // namespace ortmodule
