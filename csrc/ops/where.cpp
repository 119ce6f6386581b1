// y = condition ? a : b

#include <limits>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_where(InferContext& c) {
  if (c.input(0).dtype != DType::Bool)
    c.fail(str("condition must be bool, but found ", name_of(c.input(0).dtype)));
  const Value& a = c.input(1);
  const Value& b = c.input(2);
  if (a.dtype != b.dtype)
    c.fail(str("both values must have the same type, but found ", name_of(a.dtype), " and ",
               name_of(b.dtype)));
  std::optional<Dims> dims = try_broadcast(a.dims, b.dims);
  if (dims) dims = try_broadcast(c.input(0).dims, *dims);
  if (!dims)
    c.fail(str("shapes must broadcast, but found ", dims_text(c.input(0).dims), ", ",
               dims_text(a.dims), " and ", dims_text(b.dims)));
  c.set(0, a.dtype, std::move(*dims));
}

Grads where_grad(GradContext& c) {
  const Handle zero = c.literal(0.0, c.dy().dtype());
  return {Handle(), c.needs(1) ? c.emit("Where", {c.x(0), c.dy(), zero}) : Handle(),
          c.needs(2) ? c.emit("Where", {c.x(0), zero, c.dy()}) : Handle()};
}

Value* condition(TorchCall& t, std::string_view name) {
  Value* value = t.tensor(name);
  if (value->dtype != DType::Bool) t.refuse("the condition must be bool");
  return value;
}

Values convert_where(TorchCall& t) {
  const DType dtype = t.output().dtype;
  Value* chosen = condition(t, "condition");
  return {t.emit("Where", {chosen, t.operand("self", dtype), t.operand("other", dtype)})};
}

Values convert_masked_fill(TorchCall& t) {
  const DType dtype = t.output().dtype;
  Value* mask = condition(t, "mask");
  return {t.emit("Where", {mask, t.operand("value", dtype), t.operand("self", dtype)})};
}

double largest_number(DType dtype) {
  switch (dtype) {
    case DType::Float64: return std::numeric_limits<double>::max();
    case DType::Float16: return 65504.0;
    case DType::BFloat16: return 0x1.FEp127;
    default: return static_cast<double>(std::numeric_limits<float>::max());
  }
}

// Numbers that are not finite, each kind by a number: by default 0, the largest and the lowest.
Values convert_nan_to_num(TorchCall& t) {
  require_real(t);
  const DType dtype = t.output().dtype;
  Value* x = t.operand("self", dtype);
  if (!is_floating(dtype)) return {t.emit("Identity", {x})};
  constexpr double kEndless = std::numeric_limits<double>::infinity();
  const double largest = largest_number(dtype);
  Value* y = x;
  const auto replace = [&](Value* found, std::string_view name, double fallback) {
    y = t.emit("Where", {found, t.literal(t.number_or(name, fallback), dtype), y});
  };
  replace(t.emit("IsNaN", {x}), "nan", 0.0);
  replace(t.emit("Equal", {x, t.literal(kEndless, dtype)}), "posinf", largest);
  replace(t.emit("Equal", {x, t.literal(-kEndless, dtype)}), "neginf", -largest);
  return {y};
}

REGISTER_OP(Where, {.inputs = {"condition", "a", "b"},
                    .outputs = {"y"},
                    .kind = OpKind::Pointwise,
                    .infer = infer_where,
                    .grad = where_grad,
                    .non_differentiable = {0},
                    .onnx = {export_pointwise},
                    .from_torch = {{"aten.nan_to_num.default", convert_nan_to_num},
                                   {"aten.where.self", convert_where},
                                   {"aten.where.ScalarOther", convert_where},
                                   {"aten.where.ScalarSelf", convert_where},
                                   {"aten.where.Scalar", convert_where},
                                   {"aten.masked_fill.Scalar", convert_masked_fill},
                                   {"aten.masked_fill.Tensor", convert_masked_fill}}});

}  // namespace
}  // namespace ortmodule
