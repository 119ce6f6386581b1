// Products of floats with weights that stay small: y = x ((w - zero) * scale), where w has 8 bits
// and scale and zero are one number or one for each index of `axis` (0: the rows of w, 1: its
// columns), or is a float of 16 bits without them; MatMulNBits has weights of 2, 4 or 8 bits in
// blocks along the inner dimension. Their kernels widen a panel of w while they pack it, so w is
// never there in 32 bits.

#include "ir/text.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"

namespace ortmodule {
namespace {

Dims product_dims(const Value& x, const DimExpr& columns) {
  Dims dims = x.dims;
  dims.back() = columns;
  return dims;
}

void check_x(InferContext& c) {
  if (c.input(0).dtype != DType::Float32 || c.input(0).rank() < 2)
    c.fail(str("x must be a matrix of f32, but found ", name_of(c.input(0).dtype),
               dims_text(c.input(0).dims)));
}

void infer_widened(InferContext& c) {
  const Value &x = c.input(0), &w = c.input(1);
  check_x(c);
  const bool half = w.dtype == DType::Float16 || w.dtype == DType::BFloat16;
  if ((w.dtype != DType::Int8 && w.dtype != DType::UInt8 && !half) || w.rank() != 2 ||
      !may_equal(x.dims.back(), w.dims[0]))
    c.fail(str("w must be a matrix of 8 bits or 16-bit floats with ", x.dims.back(),
               " rows, but found ", name_of(w.dtype), dims_text(w.dims)));
  if (half && (c.has_input(2) || c.has_input(3) || c.attrs().number("number") != 1.0))
    c.fail("w of 16-bit floats has no scale");
  const auto axis = static_cast<size_t>(c.axis("axis", 2));
  for (size_t i = 2; i < 4; ++i) {
    if (i >= c.input_count() || !c.has_input(i)) continue;
    const Value& value = c.input(i);
    const bool one = product(value.dims) == DimExpr(1);
    if (value.dtype != (i == 2 ? DType::Float32 : w.dtype) ||
        (!one && !may_equal(value.dims, {w.dims[axis]})))
      c.fail(str("operand ", i, " must have one element or ", w.dims[axis], ", but found ",
                 name_of(value.dtype), dims_text(value.dims)));
  }
  c.set(0, DType::Float32, product_dims(x, w.dims[1]));
}

std::string widened_body(const Node& node) {
  const auto operand = [&](size_t i) { return i < node.inputs().size() ? node.input(i) : nullptr; };
  const bool rows = node.attrs.integer("axis") == 0;
  std::string lines = "  wide = Cast<to=f32> (w)\n", last = "wide";
  if (is_floating(node.input(1)->dtype))
    return str("widened (x, w, scale, zero) => (y) {\n", lines, "  y = MatMul (x, wide)\n}");
  const auto each = [&](std::string_view name, const Value& value) {
    if (!rows || value.rank() == 0) return std::string(name);
    lines += str("  each_", name, " = Unsqueeze<axes=[1]> (", name, ")\n");
    return str("each_", name);
  };
  if (operand(3)) {
    lines += "  point = Cast<to=f32> (zero)\n";
    lines += str("  centred = Sub (wide, ", each("point", *operand(3)), ")\n");
    last = "centred";
  }
  const std::string scale =
      operand(2) ? each("scale", *operand(2)) : number_text(node.attrs.number("number"));
  lines += str("  scaled = Mul (", last, ", ", scale, ")\n");
  return str("widened (x, w, scale, zero) => (y) {\n", lines, "  y = MatMul (x, scaled)\n}");
}

REGISTER_OP(WidenedMatMul, {.domain = "com.microsoft",
                            .inputs = {"x", "w", "scale?", "zero?"},
                            .outputs = {"y"},
                            .attrs = {{"axis", 1}, {"number", 1.0}},
                            .kind = OpKind::MatMul,
                            .infer = infer_widened,
                            .flops = row_product_flops,
                            .body_of = widened_body});

// --- few bits ------------------------------------------------------------------------------------
// x, B [N, blocks, block_size * bits / 8], scales [N * blocks], zero_points? (packed alike, rows of
// whole bytes). With `rounds_x` a kernel may round each block of a row of x to 8 bits.
void infer_n_bits(InferContext& c) {
  check_x(c);
  const int64_t inner = c.attrs().integer("K"), columns = c.attrs().integer("N"),
                size = c.attrs().integer("block_size"), bits = c.attrs().integer("bits");
  constexpr int64_t kMost = int64_t{1} << 31;
  if (size < 16 || size > kMost || (size & (size - 1)) != 0 || inner <= 0 || inner > kMost ||
      columns <= 0 || columns > kMost)
    c.fail(str("block_size must be a power of two of at least 16, K and N positive, but found ",
               size, ", ", inner, " and ", columns));
  if (bits != 2 && bits != 4 && bits != 8) c.fail(str("bits must be 2, 4 or 8, but found ", bits));
  const int64_t blocks = (inner + size - 1) / size;
  const auto check = [&](size_t i, DType dtype, int64_t count) {
    if (i >= c.input_count() || !c.has_input(i)) return;
    if (c.input(i).dtype != dtype || product(c.input(i).dims) != DimExpr(count))
      c.fail(str("operand ", i, " must be ", name_of(dtype), " of ", count, " elements, but found ",
                 name_of(c.input(i).dtype), dims_text(c.input(i).dims)));
  };
  check(1, DType::UInt8, columns * blocks * (size * bits / 8));
  check(2, DType::Float32, columns * blocks);
  check(3, DType::UInt8, columns * ((blocks * bits + 7) / 8));
  if (!may_equal(c.input(0).dims.back(), inner))
    c.fail(str("x must have rows of ", inner, ", but found ", dims_text(c.input(0).dims)));
  c.set(0, DType::Float32, product_dims(c.input(0), columns));
}

REGISTER_OP(MatMulNBits, {.domain = "com.microsoft",
                          .inputs = {"x", "w", "scales", "zeros?"},
                          .outputs = {"y"},
                          .attrs = {{"bits", 4}, {"rounds_x", 0}},
                          .kind = OpKind::MatMul,
                          .infer = infer_n_bits,
                          .flops = row_product_flops});

REGISTER_ROW_AXES(rows_before_last, "WidenedMatMul", "MatMulNBits");

}  // namespace
}  // namespace ortmodule
