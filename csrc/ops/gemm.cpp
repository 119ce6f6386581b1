// y = alpha * op(a) @ op(b) + beta * c, where op transposes a if transA, b if transB

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_gemm(InferContext& c) {
  if (c.input(0).rank() != 2 || c.input(1).rank() != 2)
    c.fail(str("operands must have rank 2, but found ", dims_text(c.input(0).dims), " and ",
               dims_text(c.input(1).dims)));
  infer_matmul(c);
  if (!c.has_input(2)) return;
  const Dims& dims = c.node().output()->dims;
  const std::optional<Dims> both = try_broadcast(dims, c.input(2).dims);
  if (!both || !may_equal(*both, dims))
    c.fail(
        str("c must broadcast to ", dims_text(dims), ", but found ", dims_text(c.input(2).dims)));
  if (c.input(2).dtype != c.input(0).dtype)
    c.fail(str("operands must have the same type, but found ", name_of(c.input(0).dtype), " and ",
               name_of(c.input(2).dtype)));
}

double gemm_flops(const Attrs& attrs, const std::vector<Sizes>& in, const std::vector<Sizes>& out) {
  const int64_t k = in.at(0)[attrs.flag("transA") ? 0 : 1];
  return 2.0 * static_cast<double>(element_count(out.at(0))) * static_cast<double>(k);
}

Grads gemm_grad(GradContext& c) {
  const bool trans_a = c.attrs().flag("transA");
  const bool trans_b = c.attrs().flag("transB");
  const double alpha = c.attrs().number("alpha");
  const double beta = c.attrs().number("beta");
  auto product = [&](Handle a, Handle b, bool flip_a, bool flip_b) {
    return c.emit("Gemm", {a, b, Handle()},
                  {{"alpha", alpha}, {"transA", flip_a ? 1 : 0}, {"transB", flip_b ? 1 : 0}});
  };
  Grads grads(3);
  if (c.needs(0))
    grads[0] =
        trans_a ? product(c.x(1), c.dy(), trans_b, true) : product(c.dy(), c.x(1), false, !trans_b);
  if (c.needs(1))
    grads[1] =
        trans_b ? product(c.dy(), c.x(0), true, trans_a) : product(c.x(0), c.dy(), !trans_a, false);
  if (c.needs(2)) grads[2] = beta == 1.0 ? c.dy() : c.dy() * beta;
  return grads;
}

Values convert_addmm(TorchCall& t) {
  Value* a = t.tensor("mat1");
  Value* b = t.tensor("mat2");
  Value* self = t.tensor("self");
  require_real(t, true);
  if (a->dtype != b->dtype || self->dtype != a->dtype) t.refuse("operands must have the same type");
  const double beta = t.number_or("beta", 1.0);
  if (beta == 0.0) t.refuse("with beta = 0 torch does not read self, nan included");
  return {t.emit("Gemm", {a, b, self}, {{"alpha", t.number_or("alpha", 1.0)}, {"beta", beta}})};
}

REGISTER_OP(Gemm, {.inputs = {"a", "b", "c?"},
                   .outputs = {"y"},
                   .attrs = {{"alpha", 1.0}, {"beta", 1.0}, {"transA", 0}, {"transB", 0}},
                   .kind = OpKind::MatMul,
                   .infer = infer_gemm,
                   .grad = gemm_grad,
                   .flops = gemm_flops,
                   .onnx = {export_directly, {"alpha", "beta", "transA", "transB"}},
                   .from_torch = {{"aten.addmm.default", convert_addmm}}});

RowAxes gemm_rows(const RowQuery& query) {
  const Attrs& attrs = query.node.attrs;
  if (query.axis(1) != kWhole || query.axis(0) != (attrs.flag("transA") ? 1 : 0))
    return std::nullopt;
  const bool adds_rows = query.axis(2) != kWhole;
  if (adds_rows && (query.axis(2) != 0 || query.rank(2) != 2)) return std::nullopt;
  return std::vector<int>{0};
}
REGISTER_ROW_AXES(gemm_rows, "Gemm");

}  // namespace
}  // namespace ortmodule
