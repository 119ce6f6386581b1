// Fuses Gelu(x w + bias) with the tanh approximation into GemmFastGelu: on CUDA the epilogue of the
// product applies the activation and also writes its input for the gradient. Only in 16 bits, whose
// rounding is coarser than the library's approximation of tanh, and only in training, where that
// input is read. On the CPU BiasGelu is as fast and saves less. The op is in
// ops/gemm_fast_gelu.cpp.

#include <algorithm>

#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

/// Rows of cuBLASLt's auxiliary matrix must be a multiple of this many elements.
constexpr int64_t kRowMultiple = 8;

Reason reject(const Match& match) {
  const Value& y = *match.value("y");
  if (y.dtype != DType::Float16 && y.dtype != DType::BFloat16)
    return str("the library's tanh is accurate enough for 16 bits, not for ", name_of(y.dtype));
  const Value& w = *match.value("w");
  if (w.rank() != 2) return str("w has rank ", w.rank(), ", expected 2");
  const DimExpr& columns = y.dims.back();
  if (!columns.is_constant() || columns.value() % kRowMultiple != 0)
    return str("rows have ", columns, " elements, not a multiple of ", kRowMultiple);
  if (match.value("pre")->uses().size() != 1 || match.value("pre")->is_graph_output())
    return "the input of the activation is read elsewhere";
  return {};
}

Reason reject_biased(const Match& match) {
  if (Reason reason = reject(match)) return reason;
  const Value* bias = match.value("bias");
  if (bias && (bias->is_literal() || bias->dims != Dims{match.dims("y").back()}))
    return "the bias is not one number per column";
  return {};
}

/// GemmFastGelu takes only matrices, so the operands are reshaped.
void derive_rows(Match& match) {
  const Dims& x = match.dims("x");
  match.set("rows", Dims{product(Dims(x.begin(), x.end() - 1)), x.back()});
  match.set("dims", match.dims("y"));
}

const RuleSet kRules = {
    {.name = "Gemm",
     .pattern = R"((x, w, bias?) => (y) {
       pre = Gemm<transB=@t> (x, w, bias)
       y = Gelu<approximate="tanh"> (pre)
     })",
     .replacement = R"((x, w, bias) => (y) { y, before = GemmFastGelu<transB=@t> (x, w, bias) })",
     .reject = reject_biased},
    {.name = "Gemm of rows",
     .pattern = R"((x, w, bias?) => (y) {
       rows = Gemm<transB=@t> (x, w, bias)
       pre = Reshape<shape=@s> (rows)
       y = Gelu<approximate="tanh"> (pre)
     })",
     .replacement = R"((x, w, bias) => (y) {
       z, before = GemmFastGelu<transB=@t> (x, w, bias)
       y = Reshape<shape=@s> (z)
     })",
     .reject = reject_biased},
    {.name = "linear layer",
     .pattern = R"((x, w, bias) => (y) {
       flipped = Transpose<perm=[1,0]> (w)
       product = MatMul (x, flipped)
       pre = Add (product, bias)
       y = Gelu<approximate="tanh"> (pre)
     })",
     .replacement = R"((x, w, bias) => (y) {
       flat = Reshape<shape=@rows> (x)
       z, before = GemmFastGelu<transB=1> (flat, w, bias)
       y = Reshape<shape=@dims> (z)
     })",
     .reject = reject_biased,
     .derive = derive_rows},
    {.name = "product and bias",
     .pattern = R"((x, w, bias) => (y) {
       product = MatMul (x, w)
       pre = Add (product, bias)
       y = Gelu<approximate="tanh"> (pre)
     })",
     .replacement = R"((x, w, bias) => (y) {
       flat = Reshape<shape=@rows> (x)
       z, before = GemmFastGelu<transB=0> (flat, w, bias)
       y = Reshape<shape=@dims> (z)
     })",
     .reject = reject_biased,
     .derive = derive_rows},
    {.name = "linear layer without bias",
     .pattern = R"((x, w) => (y) {
       flipped = Transpose<perm=[1,0]> (w)
       pre = MatMul (x, flipped)
       y = Gelu<approximate="tanh"> (pre)
     })",
     .replacement = R"((x, w) => (y) {
       flat = Reshape<shape=@rows> (x)
       z, before = GemmFastGelu<transB=1> (flat, w)
       y = Reshape<shape=@dims> (z)
     })",
     .reject = reject,
     .derive = derive_rows},
    {.name = "product",
     .pattern = R"((x, w) => (y) {
       pre = MatMul (x, w)
       y = Gelu<approximate="tanh"> (pre)
     })",
     .replacement = R"((x, w) => (y) {
       flat = Reshape<shape=@rows> (x)
       z, before = GemmFastGelu<transB=0> (flat, w)
       y = Reshape<shape=@dims> (z)
     })",
     .reject = reject,
     .derive = derive_rows}};

bool fuse_gemm_gelu(Graph& graph, PassContext& context) {
  if (context.device() != Device::CUDA || !context.training()) return false;
  return apply_rules(graph, kRules, context);
}

}  // namespace

REGISTER_FUSION(fuse_gemm_gelu, fuse_gemm_gelu);

}  // namespace ortmodule
