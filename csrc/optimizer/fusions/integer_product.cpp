// Fuses what scales the sums of a product of integers: real(sum) * (a_scale * b_scale) + bias, as
// quantized models write it. The op is in ops/matmul_integer.cpp.

#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

// A kernel reads operands from memory.
Reason is_tensor(const Match& match, std::string_view name) {
  if (match.value(name)->is_literal()) return str(name, " is a literal");
  return {};
}

Reason reject_number(const Match& match) {
  if (Reason reason = is_tensor(match, "a_scale")) return reason;
  if (product(match.dims("a_scale")) != DimExpr(1)) return "the scale of a is not one number";
  if (match.dims("y") != match.dims("sum")) return "the scales add dimensions";
  return {};
}

Reason reject_scales(const Match& match) {
  if (Reason reason = is_tensor(match, "b_scale")) return reason;
  if (Reason reason = reject_number(match)) return reason;
  const Dims& dims = match.dims("b_scale");
  if (product(dims) != DimExpr(1) && dims != Dims{match.dims("y").back()})
    return "the scale of b is not one number per column";
  return {};
}

Reason reject_bias(const Match& match) {
  if (Reason reason = is_tensor(match, "bias")) return reason;
  if (match.dims("bias") != Dims{match.dims("y").back()})
    return "the bias is not one number per column";
  return {};
}

const RuleSet kRules = {{.name = "scales",
                         .pattern = R"((a, b, a_scale, b_scale, a_zero?, b_zero?) => (y) {
       sum = MatMulInteger (a, b, a_zero, b_zero)
       real = Cast<to=f32> (sum)
       factor = Mul (a_scale, b_scale)
       y = Mul (real, factor)
     })",
                         .replacement = R"((a, b, a_scale, b_scale, a_zero, b_zero) => (y) {
       y = MatMulIntegerToFloat (a, b, a_scale, b_scale, a_zero, b_zero)
     })",
                         .reject = reject_scales},
                        {.name = "a number as scale",
                         .pattern = R"((a, b, a_scale, $n, a_zero?, b_zero?) => (y) {
       sum = MatMulInteger (a, b, a_zero, b_zero)
       real = Cast<to=f32> (sum)
       factor = Mul (a_scale, n)
       y = Mul (real, factor)
     })",
                         .replacement = R"((a, b, a_scale, a_zero, b_zero) => (y) {
       y = MatMulIntegerToFloat<b_number=@n> (a, b, a_scale, _, a_zero, b_zero)
     })",
                         .reject = reject_number},
                        {.name = "bias",
                         .pattern = R"((a, b, a_scale, b_scale?, a_zero?, b_zero?, bias) => (y) {
       scaled = MatMulIntegerToFloat<b_number=@n> (a, b, a_scale, b_scale, a_zero, b_zero)
       y = Add (scaled, bias)
     })",
                         .replacement = R"((a, b, a_scale, b_scale, a_zero, b_zero, bias) => (y) {
       y = MatMulIntegerToFloat<b_number=@n> (a, b, a_scale, b_scale, a_zero, b_zero, bias)
     })",
                         .reject = reject_bias}};

}  // namespace

REGISTER_FUSION(fuse_integer_product, kRules);

}  // namespace ortmodule
