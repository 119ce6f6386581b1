// y = Gelu (tanh approximation) of pre = x @ op(w) + bias, where op transposes w if transB.
// Backward needs pre. Made by fuse_gemm_gelu.

#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_gemm_fast_gelu(InferContext& c) {
  if (c.input(0).rank() != 2 || c.input(1).rank() != 2)
    c.fail(str("x and w must be matrices, but found ", dims_text(c.input(0).dims), " and ",
               dims_text(c.input(1).dims)));
  infer_matmul(c);
  const Dims dims = c.node().output()->dims;
  if (c.has_input(2) &&
      (c.input(2).dtype != c.input(0).dtype || !may_equal(c.input(2).dims, {dims[1]})))
    c.fail(str("the bias must be ", name_of(c.input(0).dtype), dims_text({dims[1]}), ", but found ",
               name_of(c.input(2).dtype), dims_text(c.input(2).dims)));
  c.set(1, c.input(0).dtype, dims);
}

// As for Gemm, from the gradient of pre.
Grads gemm_fast_gelu_grad(GradContext& c) {
  Handle dpre = c.dy(1);
  if (c.dy(0)) {
    const Handle through = c.emit("GeluGrad", {c.dy(0), c.y(1)}, {{"approximate", "tanh"}});
    dpre = dpre ? dpre + through : through;
  }
  const bool trans_b = c.attrs().flag("transB");
  const auto product = [&](Handle a, Handle b, int64_t flip_a, int64_t flip_b) {
    return c.emit("Gemm", {a, b, Handle()}, {{"transA", flip_a}, {"transB", flip_b}});
  };
  Grads grads(3);
  if (c.needs(0)) grads[0] = product(dpre, c.x(1), 0, trans_b ? 0 : 1);
  if (c.needs(1)) grads[1] = trans_b ? product(dpre, c.x(0), 1, 0) : product(c.x(0), dpre, 1, 0);
  if (c.needs(2)) grads[2] = dpre;
  return grads;
}

REGISTER_OP(GemmFastGelu, {.domain = "com.microsoft",
                           .inputs = {"x", "w", "bias?"},
                           .outputs = {"y", "pre"},
                           .attrs = {{"transB", 0}},
                           .kind = OpKind::MatMul,
                           .infer = infer_gemm_fast_gelu,
                           .grad = gemm_fast_gelu_grad,
                           .flops = row_product_flops,
                           .body = R"(gemm_fast_gelu (x, w, bias) => (y, pre) {
                             pre = Gemm<transB=@transB> (x, w, bias)
                             y = Gelu<approximate="tanh"> (pre)
                           })",
                           .indivisible = true});

}  // namespace
}  // namespace ortmodule
