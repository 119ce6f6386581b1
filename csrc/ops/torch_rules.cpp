#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// Promotion across priorities: the lower one only counts if its category is higher.
DType combine(DType higher, DType lower) {
  if (higher == DType::Undefined) return lower;
  if (lower == DType::Undefined || is_complex(higher)) return higher;
  if (is_floating(higher)) return is_complex(lower) ? promote(higher, lower) : higher;
  if (higher == DType::Bool || is_floating(lower) || is_complex(lower))
    return promote(higher, lower);
  return higher;
}

DType merge(DType a, DType b) { return a == DType::Undefined ? b : promote(a, b); }

}  // namespace

DType result_type(const TorchCall& t, std::initializer_list<std::string_view> names) {
  DType with_dims = DType::Undefined;
  DType scalars = DType::Undefined;
  DType numbers = DType::Undefined;
  for (std::string_view name : names) {
    if (const Value* value = t.optional_tensor(name)) {
      DType& slot = value->rank() > 0 ? with_dims : scalars;
      slot = merge(slot, value->dtype);
    } else if (t.is_float_number(name)) {
      numbers = merge(numbers, DType::Float32);
    } else {
      const bool flag = std::holds_alternative<bool>(t.arg(name).value);
      numbers = merge(numbers, flag ? DType::Bool : DType::Int64);
    }
  }
  return combine(with_dims, combine(scalars, numbers));
}

Values binary_operands(TorchCall& t) {
  const DType dtype = t.output().dtype;
  return {t.operand("self", dtype), t.operand("other", dtype)};
}

Value* reduce_loss(TorchCall& t, Value* loss) {
  const int64_t reduction = t.integer_or("reduction", 1);
  if (reduction == 0) return loss;
  return t.emit(reduction == 1 ? "ReduceMean" : "ReduceSum", {loss}, {{"keepdims", 0}});
}

void require_real(const TorchCall& t, bool floating) {
  const DType dtype = t.output().dtype;
  if (dtype == DType::Undefined || is_complex(dtype)) t.refuse("only real types are converted");
  if (floating && !is_floating(dtype)) t.refuse("only floating types are converted");
}

}  // namespace ortmodule
