// RotaryEmbedding: y = x [.., .., .., width] with pairs of elements turned by angles, whose cosines
// and sines [.., .., .., half] are broadcast: pairs of element i and i + half, or of neighbours if
// `interleaved`. Elements behind the first 2 half stay. Import from ONNX.
#include "ir/text.h"
#include "ops/infer_rules.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"

namespace ortmodule {
namespace {

void infer_rotary(InferContext& c) {
  const Value& x = c.input(0);
  for (size_t i = 1; i < 3; ++i) {
    const Value& table = c.input(i);
    bool fits = x.rank() == 4 && table.rank() == 4 && table.dtype == x.dtype &&
                may_equal(table.dims, c.input(1).dims);
    for (size_t d = 0; fits && d < 3; ++d)
      fits = table.dims[d] == DimExpr(1) || may_equal(table.dims[d], x.dims[d]);
    if (!fits)
      c.fail(str("tables must be broadcast to x ", name_of(x.dtype), dims_text(x.dims),
                 " of rank 4, but found ", name_of(table.dtype), dims_text(table.dims)));
  }
  c.set(0, x.dtype, x.dims);
}

std::string rotary_body(const Node& node) {
  const Dims& dims = node.input(0)->dims;
  const DimExpr width = dims.at(3), half = node.input(1)->dims.at(3), turned = half * DimExpr(2);
  const bool interleaved = node.attrs.flag("interleaved");
  const auto slice = [](std::string_view name, const DimExpr& start, const DimExpr& end, int step) {
    return str("  ", name, " = Slice<axis=3, start=", start, ", end=", end, ", step=", step,
               "> (x)\n");
  };
  std::string lines = interleaved ? slice("a", 0, turned, 2) + slice("b", 1, turned, 2)
                                  : slice("a", 0, half, 1) + slice("b", half, turned, 1);
  lines +=
      "  ac = Mul (a, cosines)\n  bs = Mul (b, sines)\n  real = Sub (ac, bs)\n"
      "  as = Mul (a, sines)\n  bc = Mul (b, cosines)\n  imaginary = Add (as, bc)\n";
  if (interleaved) {
    Dims pairs{dims[0], dims[1], dims[2], turned};
    lines +=
        "  reals = Unsqueeze<axes=[4]> (real)\n  imaginaries = Unsqueeze<axes=[4]> (imaginary)\n"
        "  pairs = Concat<axis=4> (reals, imaginaries)\n";
    lines += str("  turned = Reshape<shape=", dims_text(pairs), "> (pairs)\n");
  } else {
    lines += "  turned = Concat<axis=3> (real, imaginary)\n";
  }
  const bool whole = turned == width;
  if (!whole) lines += slice("rest", turned, width, 1) + "  all = Concat<axis=3> (turned, rest)\n";
  return str("rotary (x, cosines, sines) => (", whole ? "turned" : "all", ") {\n", lines, "}");
}

REGISTER_OP(RotaryEmbedding, {.domain = "com.microsoft",
                              .inputs = {"x", "cosines", "sines"},
                              .outputs = {"y"},
                              .attrs = {{"interleaved", 0}},
                              .infer = infer_rotary,
                              .body_of = rotary_body});
REGISTER_ROW_AXES(rows_elementwise, "RotaryEmbedding");

// x [B, heads, L, E] or [B, L, heads * E], tables [B, L, half], or [rows, half] with positions
Values import_rotary(OnnxCall& c) {
  Value* x = c.in(0);
  const bool has_heads = x->rank() == 4;
  if (!has_heads) {
    const int64_t heads = c.integer("num_heads", 0);
    if (heads <= 0) c.refuse("num_heads must be given for operands of rank 3");
    x = c.reshape(x,
                  {x->dims.at(0), x->dims.at(1), heads, DimExpr::floor_div(x->dims.at(2), heads)});
  }
  const DimExpr width = x->dims.at(3);
  const int64_t given_width = c.integer("rotary_embedding_dim", 0);
  const DimExpr half = DimExpr::floor_div(given_width > 0 ? DimExpr(given_width) : width, 2);
  Values operands{x};
  for (size_t i : {1, 2}) {
    Value* table = c.in(i);
    if (c.has(3)) table = c.emit("Gather", {table, c.in(3)}, {{"axis", 0}});
    if (table->rank() != 3 || !c.sizes().equal(table->dims.at(2), half))
      c.refuse(str("the tables must have ", half, " columns, but found ", dims_text(table->dims)));
    const Dims& d = table->dims;
    operands.push_back(c.reshape(table, has_heads ? Dims{d[0], DimExpr(1), d[1], d[2]}
                                                  : Dims{d[0], d[1], DimExpr(1), d[2]}));
  }
  Value* y = c.emit("RotaryEmbedding", operands,
                    {{"interleaved", int64_t{c.flag("interleaved") ? 1 : 0}}});
  return {has_heads ? y : c.reshape(y, c.dims(0))};
}

REGISTER_ONNX({{"RotaryEmbedding", 23, import_rotary}});

}  // namespace
}  // namespace ortmodule
