// Arithmetic on known contents, elementwise with broadcasting. Where an expression cannot say a
// result, the sizes of the first call are fixed by guards and the result is a number.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "ops/onnx_call.h"

namespace ortmodule {

/// `op` (an ONNX operator of two operands) on the contents of operands 0 and 1, or nullopt if one
/// is not known or the operator is none of arithmetic, comparison and logic.
std::optional<std::vector<KnownValue>> known_binary(OnnxCall& c);
/// The same for any two contents, `op` being one of these operators.
std::optional<KnownValue> known_pairs(OnnxCall& c, std::string_view op, const KnownValue& a,
                                      const KnownValue& b);
/// The same for operators of one operand: Neg, Abs, Floor, Ceil, Round, Sqrt, Sign, Not, Identity.
std::optional<std::vector<KnownValue>> known_unary(OnnxCall& c);
std::optional<std::vector<KnownValue>> known_where(OnnxCall& c);

/// One number in another element type, as ONNX's Cast converts it.
KnownNumber known_cast(OnnxCall& c, const KnownNumber& number, DType to);
/// Numbers by ONNX operator: Add, Sub, Mul, Div, Mod, Min, Max, Pow and comparisons.
KnownNumber known_number(OnnxCall& c, std::string_view op, const KnownNumber& a,
                         const KnownNumber& b, DType dtype);

}  // namespace ortmodule
