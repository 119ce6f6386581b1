// y = clamp(round(((a - a_zero) a_scale + (b - b_zero) b_scale) / y_scale) + y_zero), bent before
// by `relu`: a sum of dequantized tensors of the same sizes that is quantized again. QuantizedMul
// is the same of their product. QuantizedIntegerMul rounds the product of integers, scaled, with
// the zero point added before, as QLinearMul does.

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/requantized.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

/// Checks operands `i`, `scale` and `zero`: bytes, one number, and one of their type or none.
void check_term(InferContext& c, size_t i, size_t scale, size_t zero) {
  const Value &q = c.input(i), &number = c.input(scale);
  if (!is_byte(q.dtype) || !may_equal(q.dims, c.input(0).dims))
    c.fail(str("what is dequantized must be i8 or u8 and have the same sizes, but found ",
               name_of(q.dtype), dims_text(q.dims)));
  if (number.dtype != DType::Float32 || product(number.dims) != DimExpr(1))
    c.fail("a scale must be one f32");
  if (c.has_input(zero) &&
      (c.input(zero).dtype != q.dtype || product(c.input(zero).dims) != DimExpr(1)))
    c.fail(str("a zero point must be one ", name_of(q.dtype)));
}

/// Appends lines that take the zero point from operand `name`; returns the name of the result.
std::string add_centred(const std::string& name, bool has_zero, std::string& lines) {
  lines += str("  wide_", name, " = Cast<to=f32> (", name, ")\n");
  if (!has_zero) return "wide_" + name;
  lines += str("  point_", name, " = Cast<to=f32> (", name, "_zero)\n  centred_", name,
               " = Sub (wide_", name, ", point_", name, ")\n");
  return "centred_" + name;
}

/// Appends lines that dequantize operand `name`; returns the name of the result.
std::string add_dequantized(const std::string& name, bool has_zero, std::string& lines) {
  const std::string centred = add_centred(name, has_zero, lines);
  lines += str("  real_", name, " = Mul (", centred, ", ", name, "_scale)\n");
  return "real_" + name;
}

// a, b, a_scale, b_scale, a_zero, b_zero, y_scale, y_zero
void infer_quantized_pair(InferContext& c) {
  check_term(c, 0, 2, 4);
  check_term(c, 1, 3, 5);
  c.set(0, requantized_type(c, 6), c.input(0).dims);
}

template <OpName op>
std::string quantized_pair_body(const Node& node) {
  std::string lines;
  const std::string a = add_dequantized("a", node.input(4), lines),
                    b = add_dequantized("b", node.input(5), lines);
  lines += str("  real = ", op.text, " (", a, ", ", b, ")\n");
  const std::string y = add_requantized(node, "real", 6, lines);
  return str("quantized_pair (a, b, a_scale, b_scale, a_zero, b_zero, y_scale, y_zero) => (", y,
             ") {\n", lines, "}");
}

// x, x_scale, x_zero, y_scale, y_zero
void infer_requantize(InferContext& c) {
  check_term(c, 0, 1, 2);
  c.set(0, requantized_type(c, 3), c.input(0).dims);
}

std::string requantize_body(const Node& node) {
  std::string lines;
  const std::string x = add_dequantized("x", node.input(2), lines);
  const std::string y = add_requantized(node, x, 3, lines);
  return str("requantize (x, x_scale, x_zero, y_scale, y_zero) => (", y, ") {\n", lines, "}");
}

// a, b, a_zero, b_zero, scale, ratio, y_zero
void infer_integer_mul(InferContext& c) {
  check_term(c, 0, 4, 2);
  check_term(c, 1, 5, 3);
  if (c.has_input(6) &&
      (c.input(6).dtype != c.input(0).dtype || product(c.input(6).dims) != DimExpr(1)))
    c.fail(str("the zero point of y must be one ", name_of(c.input(0).dtype)));
  c.set(0, c.input(0).dtype, c.input(0).dims);
}

std::string integer_mul_body(const Node& node) {
  std::string lines;
  const std::string a = add_centred("a", node.input(2), lines),
                    b = add_centred("b", node.input(3), lines);
  lines += str("  product = Mul (", a, ", ", b, ")\n  scaled = Mul (product, scale)\n",
               "  steps = Mul (scaled, ratio)\n");
  std::string real = "steps";
  if (node.input(6)) {
    lines += "  point = Cast<to=f32> (y_zero)\n  placed = Add (steps, point)\n";
    real = "placed";
  }
  const DType dtype = node.input(0)->dtype;
  const int least = dtype == DType::Int8 ? -128 : 0;
  lines +=
      str("  rounded = Round (", real, ")\n  clipped = Clip<min=", least, ".0, max=", least + 255,
          ".0> (rounded)\n  y = Cast<to=", name_of(dtype), "> (clipped)\n");
  return str("integer_mul (a, b, a_zero, b_zero, scale, ratio, y_zero) => (y) {\n", lines, "}");
}

OpDef quantized_pair(std::string (*body_of)(const Node&)) {
  return {.domain = "com.microsoft",
          .inputs = {"a", "b", "a_scale", "b_scale", "a_zero?", "b_zero?", "y_scale", "y_zero"},
          .outputs = {"y"},
          .attrs = {{"relu", 0}},
          .kind = OpKind::Opaque,
          .infer = infer_quantized_pair,
          .keeps_channels_last = always,
          .body_of = body_of};
}

REGISTER_OP(QuantizedAdd, quantized_pair(quantized_pair_body<"Add">));
REGISTER_OP(QuantizedMul, quantized_pair(quantized_pair_body<"Mul">));

REGISTER_OP(QuantizedIntegerMul,
            {.domain = "com.microsoft",
             .inputs = {"a", "b", "a_zero?", "b_zero?", "scale", "ratio", "y_zero?"},
             .outputs = {"y"},
             .kind = OpKind::Opaque,
             .infer = infer_integer_mul,
             .keeps_channels_last = always,
             .body_of = integer_mul_body});

REGISTER_OP(Requantize, {.domain = "com.microsoft",
                         .inputs = {"x", "x_scale", "x_zero?", "y_scale", "y_zero"},
                         .outputs = {"y"},
                         .attrs = {{"relu", 0}},
                         .kind = OpKind::Opaque,
                         .infer = infer_requantize,
                         .keeps_channels_last = always,
                         .body_of = requantize_body});

REGISTER_ROW_AXES(rows_elementwise, "QuantizedAdd", "QuantizedMul", "QuantizedIntegerMul",
                  "Requantize");

}  // namespace
}  // namespace ortmodule
