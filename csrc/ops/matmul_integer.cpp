// Products of integers of 8 bits, summed in 32: y = (a - a_zero) (b - b_zero). MatMulIntegerToFloat
// scales the sums: y * (a_scale * b_scale) + bias, where b_scale may be the attribute b_number; a
// bias of integers is added before. With `relu` the result is bent, and with y_scale it is
// quantized again: clamp(round(y / y_scale) + y_zero). A zero point is one number, or one for each
// row of a or column of b; b's scale likewise. The packed op does either on weights that
// PackIntegerMatrix has packed: one tensor of bytes, of the same size on every machine.

#include "base/integer_panels.h"
#include "ir/text.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/requantized.h"
#include "ops/row_axes.h"

namespace ortmodule {
namespace {

// A zero point or a scale: one number, or one for each of `count`.
void check_each(InferContext& c, size_t operand, DType dtype, const DimExpr& count) {
  if (!c.has_input(operand)) return;
  const Value& value = c.input(operand);
  const bool one = product(value.dims) == DimExpr(1);
  if (value.dtype != dtype || (!one && (value.rank() != 1 || !may_equal(value.dims[0], count))))
    c.fail(str("operand ", operand, " must be ", name_of(dtype), " of one element or ", count,
               " elements, but found ", name_of(value.dtype), dims_text(value.dims)));
}

Dims product_dims(InferContext& c) {
  const Value &a = c.input(0), &b = c.input(1);
  if (!is_byte(a.dtype) || !is_byte(b.dtype))
    c.fail(
        str("operands must be i8 or u8, but found ", name_of(a.dtype), " and ", name_of(b.dtype)));
  if (a.rank() < 2 || b.rank() < 2 || !may_equal(a.dims.back(), b.dims[b.rank() - 2]))
    c.fail(str("operands must be matrices of one inner dimension, but found ", dims_text(a.dims),
               " and ", dims_text(b.dims)));
  std::optional<Dims> dims =
      try_broadcast(Dims(a.dims.begin(), a.dims.end() - 2), Dims(b.dims.begin(), b.dims.end() - 2));
  if (!dims)
    c.fail(str("batch dimensions must broadcast, but found ", dims_text(a.dims), " and ",
               dims_text(b.dims)));
  dims->push_back(a.dims[a.rank() - 2]);
  dims->push_back(b.dims.back());
  return *dims;
}

void infer_matmul_integer(InferContext& c) {
  Dims dims = product_dims(c);
  check_each(c, 2, c.input(0).dtype, dims[dims.size() - 2]);
  check_each(c, 3, c.input(1).dtype, dims.back());
  c.set(0, DType::Int32, std::move(dims));
}

// Operands from 2 on: a_scale, b_scale, a_zero, b_zero, bias, y_scale, y_zero. Returns the type of
// the result.
DType check_scaled(InferContext& c, const Dims& dims, DType b_dtype) {
  check_each(c, 2, DType::Float32, 1);
  check_each(c, 3, DType::Float32, dims.back());
  check_each(c, 4, c.input(0).dtype, dims[dims.size() - 2]);
  check_each(c, 5, b_dtype, dims.back());
  if (c.has_input(6) && ((c.input(6).dtype != DType::Float32 && c.input(6).dtype != DType::Int32) ||
                         !may_equal(c.input(6).dims, {dims.back()})))
    c.fail(str("the bias must be f32 or i32", dims_text({dims.back()}), ", but found ",
               name_of(c.input(6).dtype), dims_text(c.input(6).dims)));
  return requantized_type(c, 7);
}

void infer_product_to_float(InferContext& c) {
  Dims dims = product_dims(c);
  c.input(2);
  const DType dtype = check_scaled(c, dims, c.input(1).dtype);
  c.set(0, dtype, std::move(dims));
}

void infer_packed_bytes(InferContext& c) {
  const Value& b = c.input(0);
  if (b.rank() != 2 || !is_byte(b.dtype) || !b.dims[0].is_constant() || !b.dims[1].is_constant())
    c.fail(str("b must be a matrix of i8 or u8 of fixed sizes, but found ", name_of(b.dtype),
               dims_text(b.dims)));
  c.set(0, DType::Int8, {integer_panel_bytes(b.dims[0].value(), b.dims[1].value())});
}

void infer_packed(InferContext& c) {
  const Value &a = c.input(0), &panels = c.input(1);
  const int64_t columns = c.attrs().integer("columns");
  if (!is_byte(a.dtype) || a.rank() < 2)
    c.fail(str("a must be a matrix of i8 or u8, but found ", name_of(a.dtype), dims_text(a.dims)));
  if (a.dims.back().is_constant() &&
      panels.dims != Dims{integer_panel_bytes(a.dims.back().value(), columns)})
    c.fail(str("the panels must hold ", a.dims.back(), " x ", columns, " elements, but found ",
               dims_text(panels.dims)));
  Dims dims = a.dims;
  dims.back() = columns;
  const DType dtype =
      check_scaled(c, dims, c.attrs().flag("unsigned_b") ? DType::UInt8 : DType::Int8);
  for (size_t i : {3, 6, 7})
    if (c.has_input(i) && !c.has_input(2)) c.fail(str("operand ", i, " needs a_scale"));
  c.set(0, c.has_input(2) ? dtype : DType::Int32, std::move(dims));
}

// The operand in 32 bits, less its zero point; lines of text and the name of the result.
std::string centred(const Node& node, std::string_view name, size_t operand, size_t zero,
                    std::string& lines) {
  lines += str("  wide_", name, " = Cast<to=i32> (", name, ")\n");
  const Value* point = zero < node.inputs().size() ? node.input(zero) : nullptr;
  if (!point) return str("wide_", name);
  lines += str("  point_", name, " = Cast<to=i32> (", name, "_zero)\n");
  const bool each_row = operand == 0 && point->rank() == 1;
  if (each_row) lines += str("  row_", name, " = Unsqueeze<axes=[1]> (point_", name, ")\n");
  lines += str("  centred_", name, " = Sub (wide_", name, ", ", each_row ? "row_" : "point_", name,
               ")\n");
  return str("centred_", name);
}

std::string matmul_integer_body(const Node& node) {
  std::string lines;
  const std::string a = centred(node, "a", 0, 2, lines), b = centred(node, "b", 1, 3, lines);
  return str("matmul_integer (a, b, a_zero, b_zero) => (y) {\n", lines, "  y = MatMul (", a, ", ",
             b, ")\n}");
}

REGISTER_OP(MatMulInteger, {.inputs = {"a", "b", "a_zero?", "b_zero?"},
                            .outputs = {"y"},
                            .kind = OpKind::MatMul,
                            .infer = infer_matmul_integer,
                            .flops = row_product_flops,
                            .body_of = matmul_integer_body,
                            .onnx = {export_directly}});

std::string product_to_float_body(const Node& node) {
  const bool has_scale = node.inputs().size() > 3 && node.input(3);
  const std::string scale = has_scale ? "b_scale" : number_text(node.attrs.number("b_number"));
  const bool integers = node.input(6) && node.input(6)->dtype == DType::Int32;
  std::string lines = "  sum = MatMulInteger (a, b, a_zero, b_zero)\n";
  if (integers) lines += "  total = Add (sum, bias)\n";
  lines += str("  real = Cast<to=f32> (", integers ? "total" : "sum", ")\n");
  lines += str("  factor = Mul (a_scale, ", scale, ")\n  scaled = Mul (real, factor)\n");
  if (!integers) lines += "  biased = Add (scaled, bias)\n";
  const std::string y = add_requantized(node, integers ? "scaled" : "biased", 7, lines);
  return str("to_float (a, b, a_scale, b_scale, a_zero, b_zero, bias, y_scale, y_zero) => (", y,
             ") {\n", lines, "}");
}

REGISTER_OP(MatMulIntegerToFloat, {.domain = "com.microsoft",
                                   .inputs = {"a", "b", "a_scale", "b_scale?", "a_zero?", "b_zero?",
                                              "bias?", "y_scale?", "y_zero?"},
                                   .outputs = {"y"},
                                   .attrs = {{"b_number", 1.0}, {"relu", 0}},
                                   .kind = OpKind::MatMul,
                                   .infer = infer_product_to_float,
                                   .flops = row_product_flops,
                                   .body_of = product_to_float_body});

REGISTER_OP(PackIntegerMatrix, {.domain = "com.microsoft",
                                .inputs = {"b"},
                                .outputs = {"panels"},
                                .kind = OpKind::Data,
                                .infer = infer_packed_bytes});

REGISTER_OP(PackedMatMulInteger, {.domain = "com.microsoft",
                                  .inputs = {"a", "panels", "a_scale?", "b_scale?", "a_zero?",
                                             "b_zero?", "bias?", "y_scale?", "y_zero?"},
                                  .outputs = {"y"},
                                  .attrs = {{"unsigned_b", 0}, {"b_number", 1.0}, {"relu", 0}},
                                  .kind = OpKind::MatMul,
                                  .infer = infer_packed,
                                  .flops = row_product_flops});

// Products with whole weights and zero points.
REGISTER_ROW_AXES(rows_before_last, "MatMulInteger");

}  // namespace
}  // namespace ortmodule
