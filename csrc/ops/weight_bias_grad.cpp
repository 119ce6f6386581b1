// The gradients of a linear layer's weight and bias: dw = dy' x (or its transpose, x' dy) and dbias
// = the sum of the rows of dy. Made by fuse_weight_bias_grad.

#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

template <bool transposed>
void infer_weight_bias_grad(InferContext& c) {
  const Value& dy = c.input(0);
  const Value& x = c.input(1);
  if (dy.rank() != 2 || x.rank() != 2 || !may_equal(dy.dims[0], x.dims[0]) || dy.dtype != x.dtype)
    c.fail(str("dy and x must be matrices of one type with equal rows, but found ",
               name_of(dy.dtype), dims_text(dy.dims), " and ", name_of(x.dtype),
               dims_text(x.dims)));
  const DimExpr &outputs = dy.dims[1], &inputs = x.dims[1];
  c.set(0, dy.dtype, transposed ? Dims{inputs, outputs} : Dims{outputs, inputs});
  c.set(1, dy.dtype, {outputs});
}

double weight_bias_grad_flops(const Attrs&, const std::vector<Sizes>& in,
                              const std::vector<Sizes>&) {
  const double rows = static_cast<double>(in.at(0).at(0));
  return 2.0 * rows * static_cast<double>(in.at(0).at(1)) * static_cast<double>(in.at(1).at(1));
}

const std::vector<OpDef> kFamily = {{.name = "WeightBiasGrad",
                                     .domain = "com.microsoft",
                                     .inputs = {"dy", "x"},
                                     .outputs = {"dw", "dbias"},
                                     .kind = OpKind::MatMul,
                                     .infer = infer_weight_bias_grad<false>,
                                     .flops = weight_bias_grad_flops,
                                     .body = R"(weight_bias_grad (dy, x) => (dw, dbias) {
       dw = FusedMatMul<transA=1> (dy, x)
       dbias = ReduceSum<axes=[0], keepdims=0> (dy)
     })",
                                     .indivisible = true},
                                    {.name = "WeightBiasGradTransposed",
                                     .domain = "com.microsoft",
                                     .inputs = {"dy", "x"},
                                     .outputs = {"dw", "dbias"},
                                     .kind = OpKind::MatMul,
                                     .infer = infer_weight_bias_grad<true>,
                                     .flops = weight_bias_grad_flops,
                                     .body = R"(weight_bias_grad_transposed (dy, x) => (dw, dbias) {
       dw = FusedMatMul<transA=1> (x, dy)
       dbias = ReduceSum<axes=[0], keepdims=0> (dy)
     })",
                                     .indivisible = true}};

REGISTER_OPS(kFamily);

}  // namespace
}  // namespace ortmodule
