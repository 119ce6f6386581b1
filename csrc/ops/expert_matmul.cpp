// ExpertMatMul: y[t, j] = x[t] W[ids[t, j]]^T, the products of a mixture of experts, each row with
// the weights of the experts that it was sent to; x has a row for each token, or [tokens, each, K].
// W [experts, N, K] is float32, or has 2, 4 or 8 bits in blocks along K as those of MatMulNBits.
#include "base/error.h"
#include "ir/text.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void check_expert_weights(InferContext& c, int64_t inner, int64_t columns) {
  const int64_t bits = c.attrs().integer("bits"), size = c.attrs().integer("block_size");
  constexpr int64_t kMost = int64_t{1} << 31;
  if (inner <= 0 || inner > kMost || columns <= 0 || columns > kMost || size <= 0 || size > kMost)
    c.fail(str("K, N and block_size must be positive, but found ", inner, ", ", columns, " and ",
               size));
  if (bits != 2 && bits != 4 && bits != 8 && bits != 32)
    c.fail(str("bits must be 2, 4, 8 or 32, but found ", bits));
  if (size * bits % 8 != 0) c.fail(str("blocks must have whole bytes, but found ", size));
  const int64_t blocks = (inner + size - 1) / size;
  const DimExpr experts = c.input(2).rank() > 0 ? c.input(2).dims[0] : DimExpr(0);
  const auto check = [&](size_t i, DType dtype, int64_t count) {
    if (i >= c.input_count() || !c.has_input(i)) return;
    if (c.input(i).dtype != dtype || product(c.input(i).dims) != experts * DimExpr(count))
      c.fail(str("operand ", i, " must be ", name_of(dtype), " of ", count,
                 " elements for each expert, but found ", name_of(c.input(i).dtype),
                 dims_text(c.input(i).dims)));
  };
  if (bits == 32) return check(2, DType::Float32, columns * inner);
  check(2, DType::UInt8, columns * blocks * (size * bits / 8));
  check(3, DType::Float32, columns * blocks);
  check(4, DType::UInt8, columns * ((blocks * bits + 7) / 8));
}

void infer_expert_matmul(InferContext& c) {
  const Value &x = c.input(0), &ids = c.input(1);
  const int64_t inner = c.attrs().integer("K"), columns = c.attrs().integer("N");
  if (x.dtype != DType::Float32 || (x.rank() != 2 && x.rank() != 3) || ids.rank() != 2 ||
      ids.dtype != DType::Int64)
    c.fail(str("x must be f32 of rank 2 or 3 and ids i64 of rank 2, but found ", name_of(x.dtype),
               dims_text(x.dims), " and ", name_of(ids.dtype), dims_text(ids.dims)));
  check_expert_weights(c, inner, columns);
  if (!may_equal(x.dims[0], ids.dims[0]) || !may_equal(x.dims.back(), inner) ||
      (x.rank() == 3 && !may_equal(x.dims[1], ids.dims[1])))
    c.fail(str("x must have rows of ", inner, " for ids ", dims_text(ids.dims), ", but found ",
               dims_text(x.dims)));
  c.set(0, DType::Float32, {ids.dims[0], ids.dims[1], columns});
}

double expert_flops(const Attrs& attrs, const std::vector<Sizes>&, const std::vector<Sizes>& out) {
  return 2.0 * static_cast<double>(attrs.integer("K")) * static_cast<double>(element_count(out[0]));
}

// The layer around it has a form in onnxruntime's operators, a product by itself has none.
void export_expert_matmul(const OnnxRuleContext&) {
  throw Error(
      "[save_onnx] nodes must have a form in ONNX's operators, but the products of a mixture of "
      "experts have none");
}

REGISTER_OP(ExpertMatMul, {.domain = "com.microsoft",
                           .inputs = {"x", "ids", "w", "scales?", "zeros?"},
                           .outputs = {"y"},
                           .attrs = {{"bits", 32}, {"block_size", 32}, {"rounds_x", 0}},
                           .kind = OpKind::MatMul,
                           .infer = infer_expert_matmul,
                           .flops = expert_flops,
                           .onnx = {export_expert_matmul}});

}  // namespace
}  // namespace ortmodule
