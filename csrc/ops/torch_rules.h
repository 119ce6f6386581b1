// Conversions shared by many torch overloads.
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

/// torch's result type of arguments: tensors with dims outrank scalar tensors, which outrank Python
/// numbers, unless the lower one is of a higher category (bool < integers < floats < complex).
DType result_type(const TorchCall& t, std::initializer_list<std::string_view> names);

/// Operands `self` and `other` in the type of the result, which is that of the op.
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

/// The loss's reduction: 0 none, 1 mean, 2 sum.
Value* reduce_loss(TorchCall& t, Value* loss);

/// Refuses a result that is complex or of an unknown type; floats only if `floating`.
void require_real(const TorchCall& t, bool floating = false);

}  // namespace ortmodule
