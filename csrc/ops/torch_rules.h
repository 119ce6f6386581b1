// Conversion helpers shared by many torch overloads.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "ops/torch_call.h"

namespace ortmodule {

/// An op's name as a template argument: a TorchRow holds a plain function.
template <size_t n>
struct OpName {
  constexpr OpName(const char (&name)[n]) { std::copy_n(name, n, text); }  // NOLINT: implicit
  char text[n];
};

/// torch.result_type of the arguments: tensors with dims have priority over tensors without, these
/// over Python numbers, unless the other is of a higher category (bool < integers < floats <
/// complex).
DType result_type(const TorchCall& t, std::initializer_list<std::string_view> names);

/// Operands `self` and `other`, cast to the type of the result.
Values binary_operands(TorchCall& t);

/// y = op(self), computed in the result's type.
template <OpName op>
Values convert_unary(TorchCall& t) {
  return {t.emit(op.text, {t.operand("self", t.output().dtype)})};
}

/// y = op(self, other), computed in the result's type.
template <OpName op>
Values convert_binary(TorchCall& t) {
  return {t.emit(op.text, binary_operands(t))};
}

/// Applies the argument `reduction`: 0 none, 1 mean, 2 sum.
Value* reduce_loss(TorchCall& t, Value* loss);

/// Refuses complex or unknown result types, and integers if `floating`.
void require_real(const TorchCall& t, bool floating = false);

}  // namespace ortmodule
