// Gives a product its bias: on CUDA the epilogue of the product adds it, without another pass over
// the result. Only where no pointwise op reads the sum, since a group of such ops adds it for
// nothing. In 16 bits the bias is then added before the product is rounded, as eager PyTorch does.
#include <algorithm>

#include "ops/op_def.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

Reason reject(const Match& match) {
  const Value &y = *match.value("y"), &bias = *match.value("bias");
  if (y.dtype == DType::Float64) return "cuBLASLt adds no bias of f64";
  if (match.rank("w") != 2) return str("w has rank ", match.rank("w"), ", expected 2");
  if (bias.is_literal() || bias.dims != Dims{y.dims.back()})
    return "the bias is not one number per column";
  const bool grouped = std::any_of(y.uses().begin(), y.uses().end(), [](const Use& use) {
    return op_def(use.node->op).kind == OpKind::Pointwise;
  });
  if (grouped) return "a pointwise op reads the sum, and adds the bias in the same pass";
  return {};
}

/// Gemm takes only matrices, so the operands are reshaped.
void derive(Match& match) {
  const Dims& x = match.dims("x");
  match.set("rows", Dims{product(Dims(x.begin(), x.end() - 1)), x.back()});
  match.set("dims", match.dims("y"));
}

const RuleSet kRules = {{.name = "linear layer and bias",
                         .pattern = R"((x, w, bias) => (y) {
       flipped = Transpose<perm=[1,0]> (w)
       product = MatMul (x, flipped)
       y = Add (product, bias)
     })",
                         .replacement = R"((x, w, bias) => (y) {
       flat = Reshape<shape=@rows> (x)
       z = Gemm<transB=1> (flat, w, bias)
       y = Reshape<shape=@dims> (z)
     })",
                         .reject = reject,
                         .derive = derive},
                        {.name = "product and bias",
                         .pattern = R"((x, w, bias) => (y) {
       product = MatMul (x, w)
       y = Add (product, bias)
     })",
                         .replacement = R"((x, w, bias) => (y) {
       flat = Reshape<shape=@rows> (x)
       z = Gemm<transB=0> (flat, w, bias)
       y = Reshape<shape=@dims> (z)
     })",
                         .reject = reject,
                         .derive = derive}};

bool fuse_product_bias(Graph& graph, PassContext& context) {
  if (context.device() != Device::CUDA) return false;
  return apply_rules(graph, kRules, context);
}

}  // namespace

REGISTER_FUSION(fuse_product_bias, fuse_product_bias);

}  // namespace ortmodule
