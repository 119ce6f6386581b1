// y = f(a, b) elementwise with broadcasting: Add Sub Mul Div Pow Max Min Mod FloorDiv TruncDiv
// Atan2

#include <algorithm>
#include <cmath>

#include "base/element_value.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// --- gradients --------------------------------------------------------------------------------

Grads add_grad(GradContext& c) { return {c.dy(), c.dy()}; }

Grads sub_grad(GradContext& c) { return {c.dy(), c.needs(1) ? -c.dy() : Handle()}; }

Grads mul_grad(GradContext& c) {
  return {c.needs(0) ? c.dy() * c.x(1) : Handle(), c.needs(1) ? c.dy() * c.x(0) : Handle()};
}

Grads div_grad(GradContext& c) {  // d(a/b) = da / b - y * db / b
  const Handle scaled = c.dy() / c.x(1);
  if (!c.needs(1)) return {scaled, Handle()};
  // In 16 bits, use the order of eager PyTorch, y / b first, to overflow for the same values.
  const bool wide = compute_dtype(scaled.dtype()) == scaled.dtype();
  return {c.needs(0) ? scaled : Handle(), wide ? -(scaled * c.y()) : -c.dy() * (c.y() / c.x(1))};
}

bool literal_number(Handle value, double* number) {
  if (!value.value()->is_literal()) return false;
  const Scalar& scalar = value.value()->literal();
  if (const auto* given = std::get_if<double>(&scalar)) *number = *given;
  return std::holds_alternative<double>(scalar);
}

// The exponent as torch's pow uses it: rounded for 16-bit floats.
double exponent_in(DType dtype, double number) {
  return compute_dtype(dtype) == dtype ? number : element_value(number, dtype);
}

Handle pow_base_grad(GradContext& c) {  // b * a^(b-1), and 0 where b is 0
  double exponent = 0.0;
  if (literal_number(c.x(1), &exponent)) {
    if (exponent == 0.0) return c.zeros_for(0);
    if (exponent == 1.0) return c.dy();
    if (exponent == 2.0) return c.dy() * (c.x(0) * 2.0);
    const DType dtype = c.x(0).dtype();
    const double less = exponent_in(dtype, exponent - 1.0);
    return c.dy() * (c.emit("Pow", {c.x(0), c.literal(less, dtype)}) * exponent);
  }
  const Handle zero = c.literal(0.0, c.x(1).dtype());
  const Handle power = c.emit("Pow", {c.x(0), c.x(1) - 1.0});
  return c.emit("Where", {c.emit("Equal", {c.x(1), zero}), zero, c.dy() * (c.x(1) * power)});
}

Handle pow_exponent_grad(GradContext& c) {  // y * log(a), and 0 where a is 0 and b >= 0
  double base = 0.0;
  if (literal_number(c.x(0), &base) && base > 0.0) return c.dy() * (c.y() * std::log(base));
  const Handle zero = c.literal(0.0, c.y().dtype());
  const Handle at_zero =
      c.emit("And", {c.emit("Equal", {c.x(0), zero}), c.emit("GreaterOrEqual", {c.x(1), zero})});
  const Handle slope = c.y() * c.emit("Log", {c.x(0)});
  return c.dy() * c.emit("Where", {at_zero, zero, slope});
}

Grads pow_grad(GradContext& c) {
  return {c.needs(0) ? pow_base_grad(c) : Handle(), c.needs(1) ? pow_exponent_grad(c) : Handle()};
}

// The selected operand gets the gradient; equal operands get half each, as in torch.
Handle extremum_grad(GradContext& c, std::string_view loses, size_t self, size_t other) {
  const Handle zero = c.literal(0.0, c.dy().dtype());
  const Handle ties = c.emit("Equal", {c.x(0), c.x(1)});
  const Handle share = c.emit("Where", {ties, c.dy() * 0.5, c.dy()});
  return c.emit("Where", {c.emit(loses, {c.x(self), c.x(other)}), zero, share});
}

Grads max_grad(GradContext& c) {
  return {c.needs(0) ? extremum_grad(c, "Less", 0, 1) : Handle(),
          c.needs(1) ? extremum_grad(c, "Less", 1, 0) : Handle()};
}

Grads min_grad(GradContext& c) {
  return {c.needs(0) ? extremum_grad(c, "Greater", 0, 1) : Handle(),
          c.needs(1) ? extremum_grad(c, "Greater", 1, 0) : Handle()};
}

Grads mod_grad(GradContext& c) {  // a mod b = a - b * quotient, with a locally constant quotient
  Handle other;
  if (c.needs(1)) {
    Handle quotient = c.emit("FloorDiv", {c.x(0), c.x(1)});
    if (c.attrs().flag("fmod")) quotient = c.emit("Trunc", {c.x(0) / c.x(1)});
    other = -(c.dy() * quotient);
  }
  return {c.dy(), other};
}

Grads rounded_div_grad(GradContext& c) {  // zero, also for a divisor of zero
  return {c.needs(0) ? c.zeros_for(0) : Handle(), c.needs(1) ? c.zeros_for(1) : Handle()};
}

Grads atan2_grad(GradContext& c) {
  const Handle scaled = c.dy() / (c.x(0) * c.x(0) + c.x(1) * c.x(1));
  return {c.needs(0) ? scaled * c.x(1) : Handle(), c.needs(1) ? -(scaled * c.x(0)) : Handle()};
}

// --- conversions ------------------------------------------------------------------------------

// left op alpha * right, with a single rounding in 16 bits
Value* scaled_sum(TorchCall& t, std::string_view op, std::string_view left,
                  std::string_view right) {
  const DType dtype = t.output().dtype;
  if (t.number_or("alpha", 1.0) == 1.0)
    return t.emit(op, {t.operand(left, dtype), t.operand(right, dtype)});
  const DType inside = compute_dtype(dtype);
  auto operand = [&](std::string_view name) { return t.cast(t.operand(name, dtype), inside); };
  Value* scaled = t.emit("Mul", {operand(right), t.operand("alpha", inside)});
  return t.cast(t.emit(op, {operand(left), scaled}), dtype);
}

Values convert_add(TorchCall& t) {
  if (t.output().dtype != DType::Bool) return {scaled_sum(t, "Add", "self", "other")};
  if (t.number_or("alpha", 1.0) != 1.0) t.refuse("alpha of a bool sum must be 1");
  return {t.emit("Or", binary_operands(t))};
}

Values convert_sub(TorchCall& t) { return {scaled_sum(t, "Sub", "self", "other")}; }

Values convert_rsub(TorchCall& t) { return {scaled_sum(t, "Sub", "other", "self")}; }

// The type in which torch's CPU kernels of mul and div compute. For a 16-bit result they read a
// second operand without dims as a float32 number, without rounding it. CUDA kernels round it if it
// is on the device, which is not known here.
DType scaling_dtype(const TorchCall& t) {
  const DType dtype = t.output().dtype;
  const Value* other = t.optional_tensor("other");
  const bool as_number = other && other->rank() == 0 && other->dtype != dtype;
  return as_number ? compute_dtype(dtype) : dtype;
}

// y = op(self, other) with a single rounding.
Values scaling(TorchCall& t, std::string_view op) {
  const DType inside = scaling_dtype(t);
  Value* y = t.emit(op, {t.operand("self", inside), t.operand("other", inside)});
  return {t.cast(y, t.output().dtype)};
}

Values convert_mul(TorchCall& t) {
  return scaling(t, t.output().dtype == DType::Bool ? "And" : "Mul");
}

Values convert_floor_div(TorchCall& t) { return scaling(t, "FloorDiv"); }

Values convert_div(TorchCall& t) {
  const DType dtype = t.output().dtype;
  const std::string mode = t.string("rounding_mode");
  if (mode == "floor") return convert_floor_div(t);
  if (mode != "trunc" || !is_floating(dtype)) return scaling(t, "Div");  // integer Div truncates
  const DType inside = t.is_tensor("other") ? scaling_dtype(t) : compute_dtype(dtype);
  Value* y = t.emit("TruncDiv", {t.operand("self", inside), t.operand("other", inside)});
  return {t.cast(y, dtype)};
}

// As torch, computes a^2, a^3, sqrt and reciprocals without pow. Not a^-2: the gradient of
// 1 / (a * a) is NaN at 0.
Values convert_pow_number(TorchCall& t) {
  const DType dtype = t.output().dtype;
  Value* x = t.operand("self", dtype);
  const double exponent = exponent_in(dtype, t.number("exponent"));
  if (exponent == 1.0) return {t.emit("Identity", {x})};
  if (exponent == 2.0) return {t.emit("Mul", {x, x})};
  if (exponent == 3.0) return {t.emit("Mul", {t.emit("Mul", {x, x}), x})};
  if (!is_floating(dtype) && exponent < 0.0) t.refuse("integers have no negative powers");
  if (!is_floating(dtype)) return {t.emit("Pow", {x, t.literal(exponent, dtype)})};
  if (exponent == 0.5) return {t.emit("Sqrt", {x})};
  if (exponent == -0.5) return {t.emit("Rsqrt", {x})};
  if (exponent == -1.0) return {t.emit("Reciprocal", {x})};
  return {t.emit("Pow", {x, t.literal(exponent, dtype)})};
}

Values convert_pow(TorchCall& t) {
  const DType dtype = t.output().dtype;
  return {t.emit("Pow", {t.element("self", dtype), t.element("exponent", dtype)})};
}

Values convert_max(TorchCall& t) {
  return {t.emit(t.output().dtype == DType::Bool ? "Or" : "Max", binary_operands(t))};
}

Values convert_min(TorchCall& t) {
  return {t.emit(t.output().dtype == DType::Bool ? "And" : "Min", binary_operands(t))};
}

template <int fmod>
Values convert_mod(TorchCall& t) {
  const DType dtype = t.output().dtype;
  return {t.emit("Mod", {t.element("self", dtype), t.element("other", dtype)}, {{"fmod", fmod}})};
}

// self + ((value * tensor1) op tensor2); 16-bit floats in 32 bits, rounded once
template <OpName op>
Values convert_addc(TorchCall& t) {
  const DType dtype = t.output().dtype;
  if (!is_floating(dtype)) t.refuse("only floating types are converted");
  const DType inside = compute_dtype(dtype);
  auto operand = [&](std::string_view name) { return t.cast(t.operand(name, dtype), inside); };
  Value* term = operand("tensor1");
  if (t.number_or("value", 1.0) != 1.0) term = t.emit("Mul", {term, t.operand("value", inside)});
  term = t.emit(op.text, {term, operand("tensor2")});
  return {t.cast(t.emit("Add", {operand("self"), term}), dtype)};
}

// --- in ONNX ----------------------------------------------------------------------------------

// Whether `rest`, with the sign of the dividend, needs b added to get the sign of the divisor b.
std::string has_other_sign(const OnnxRuleContext& c, const std::string& rest, const std::string& b,
                           DType dtype) {
  const std::string zero = c.number(0.0, dtype);
  const std::string opposite = c.op("Xor", {c.op("Less", {rest, zero}), c.op("Less", {b, zero})});
  return c.op("And", {c.op("Not", {c.op("Equal", {rest, zero})}), opposite});
}

// a mod b with the sign of b, which ONNX only has for integers.
void export_mod(const OnnxRuleContext& c) {
  const bool fmod = c.attrs().flag("fmod");
  const DType dtype = c.dtype();
  if (fmod || !is_floating(dtype))
    return c.set(0, "Mod", c.ins(), {{"fmod", static_cast<int64_t>(fmod)}});
  const std::string rest = c.op("Mod", c.ins(), {{"fmod", int64_t{1}}});
  const std::string wrong = has_other_sign(c, rest, c.in(1), dtype);
  c.set(0, "Where", {wrong, c.op("Add", {rest, c.in(1)}), rest});
}

// As torch: (a - remainder) / b is nearly an integer and is rounded to one. 16-bit floats are
// computed in 32 bits, without rounding literals.
void export_floor_div_of_floats(const OnnxRuleContext& c) {
  const DType dtype = c.dtype(), inside = compute_dtype(dtype);
  auto operand = [&](size_t i) {
    const Value& value = c.value(i);
    const auto* number = value.is_literal() ? std::get_if<double>(&value.literal()) : nullptr;
    if (number) return c.number(*number, inside);
    return inside == dtype ? c.in(i) : c.cast(c.in(i), inside);
  };
  const std::string a = operand(0), b = operand(1);
  const std::string rest = c.op("Mod", {a, b}, {{"fmod", int64_t{1}}});
  const std::string even = c.op("Round", {c.op("Div", {c.op("Sub", {a, rest}), b})});
  const std::string below = c.op("Sub", {even, c.number(1.0, inside)});
  const std::string floored = c.op("Where", {has_other_sign(c, rest, b, inside), below, even});
  const std::string by_zero = c.op("Equal", {b, c.number(0.0, inside)});
  const std::vector<std::string> result = {by_zero, c.op("Div", {a, b}), floored};
  if (inside == dtype) return c.set(0, "Where", result);
  c.set(0, "Cast", {c.op("Where", result)}, {{"to", dtype}});
}

void export_floor_div(const OnnxRuleContext& c) {
  if (is_floating(c.dtype())) return export_floor_div_of_floats(c);
  // ONNX's integer Div truncates, so subtract a mod b first to get the floor.
  c.set(0, "Div", {c.op("Sub", {c.in(0), c.op("Mod", c.ins())}), c.in(1)});
}

// atan(y/x), shifted by pi for x < 0; for x = 0 from the sign of y.
void export_atan2(const OnnxRuleContext& c) {
  constexpr double kPi = 3.14159265358979323846;
  const DType dtype = c.dtype();
  const std::string y = c.in(0);
  const std::string x = c.in(1);
  const std::string zero = c.number(0.0, dtype);
  const std::string left = c.op("Less", {x, zero});
  const std::string below = c.op("Less", {y, zero});
  const std::string turn = c.op("Where", {below, c.number(-kPi, dtype), c.number(kPi, dtype)});
  const std::string slope = c.op("Atan", {c.op("Div", {y, x})});
  const std::string on_axis = c.op("Mul", {c.op("Sign", {y}), c.number(kPi / 2, dtype)});
  const std::string other = c.op("Where", {left, c.op("Add", {slope, turn}), slope});
  c.set(0, "Where", {c.op("Equal", {x, zero}), on_axis, other});
}

// --- the ops ----------------------------------------------------------------------------------

OpDef binary(std::string_view name, bool commutative, GradFn grad, std::vector<TorchRow> rows,
             OnnxRule onnx = {export_pointwise}, Attrs attrs = {}) {
  return {.name = name,
          .inputs = {"a", "b"},
          .outputs = {"y"},
          .attrs = std::move(attrs),
          .kind = OpKind::Pointwise,
          .commutative = commutative,
          .infer = infer_broadcast,
          .grad = grad,
          .onnx = std::move(onnx),
          .from_torch = std::move(rows)};
}

OpDef trunc_div() {
  OpDef def = binary("TruncDiv", false, rounded_div_grad, {}, {});
  def.domain = "com.microsoft";
  def.body = R"(trunc_div (a, b) => (y) {
    quotient = Div (a, b)
    y = Trunc (quotient)
  })";
  return def;
}

std::vector<OpDef> binary_ops() {
  return {
      binary("Add", true, add_grad,
             {{"aten.add.Tensor", convert_add},
              {"aten.add.Scalar", convert_add},
              {"aten.addcmul.default", convert_addc<"Mul">},
              {"aten.addcdiv.default", convert_addc<"Div">}}),
      binary("Sub", false, sub_grad,
             {{"aten.sub.Tensor", convert_sub},
              {"aten.sub.Scalar", convert_sub},
              {"aten.rsub.Tensor", convert_rsub},
              {"aten.rsub.Scalar", convert_rsub}}),
      binary("Mul", true, mul_grad,
             {{"aten.mul.Tensor", convert_mul}, {"aten.mul.Scalar", convert_mul}}),
      binary("Div", false, div_grad,
             {{"aten.div.Tensor", convert_div},
              {"aten.div.Scalar", convert_div},
              {"aten.div.Tensor_mode", convert_div},
              {"aten.div.Scalar_mode", convert_div}}),
      binary("Pow", false, pow_grad,
             {{"aten.pow.Tensor_Scalar", convert_pow_number},
              {"aten.pow.Tensor_Tensor", convert_pow},
              {"aten.pow.Scalar", convert_pow}}),
      binary("Max", true, max_grad,
             {{"aten.maximum.default", convert_max}, {"aten.max.other", convert_max}}),
      binary("Min", true, min_grad,
             {{"aten.minimum.default", convert_min}, {"aten.min.other", convert_min}}),
      binary("Mod", false, mod_grad,  // fmod 0: sign of b, as in Python; 1: sign of a, as in C
             {{"aten.remainder.Tensor", convert_mod<0>},
              {"aten.remainder.Scalar", convert_mod<0>},
              {"aten.remainder.Scalar_Tensor", convert_mod<0>},
              {"aten.fmod.Tensor", convert_mod<1>},
              {"aten.fmod.Scalar", convert_mod<1>}},
             {export_mod}, {{"fmod", 0}}),
      binary("FloorDiv", false, rounded_div_grad,
             {{"aten.floor_divide.default", convert_floor_div},
              {"aten.floor_divide.Scalar", convert_floor_div}},
             {export_floor_div}),
      trunc_div(),
      binary("Atan2", false, atan2_grad, {{"aten.atan2.default", convert_binary<"Atan2">}},
             {export_atan2}),
  };
}

REGISTER_OPS(binary_ops());

// Sums of numbers of rows and places within them, and their multiples.

bool name_no_rows(const RowQuery& query) {
  return !query.numbers[0].name_rows() && !query.numbers[1].name_rows();
}

std::optional<RowNumbers> unknown_without_rows(const RowQuery& query) {
  return name_no_rows(query) ? std::optional(RowNumbers{}) : std::nullopt;
}

std::optional<RowNumbers> sum_numbers(const RowQuery& query) {
  const RowNumbers &a = query.numbers[0], &b = query.numbers[1];
  RowNumbers sum;
  if (!a.are_bounded() || !b.are_bounded() ||
      __builtin_add_overflow(a.stride, b.stride, &sum.stride) ||
      __builtin_add_overflow(a.begin, b.begin, &sum.begin) ||
      __builtin_add_overflow(a.end, b.end - 1, &sum.end))
    return unknown_without_rows(query);
  return sum;
}

std::optional<RowNumbers> multiple_numbers(const RowQuery& query) {
  for (size_t i : {0, 1}) {
    const RowNumbers &factor = query.numbers[i], &of = query.numbers[1 - i];
    if (!factor.are_one_number() || factor.begin < 0 || !of.are_bounded()) continue;
    RowNumbers result;
    if (__builtin_mul_overflow(of.stride, factor.begin, &result.stride) ||
        __builtin_mul_overflow(of.begin, factor.begin, &result.begin) ||
        __builtin_mul_overflow(of.end - 1, factor.begin, &result.end) ||
        __builtin_add_overflow(result.end, 1, &result.end))
      continue;
    return result;
  }
  return unknown_without_rows(query);
}

std::optional<RowNumbers> least_numbers(const RowQuery& query) {
  const RowNumbers &a = query.numbers[0], &b = query.numbers[1];
  if (!name_no_rows(query)) return std::nullopt;
  return RowNumbers{0, std::min(a.begin, b.begin), std::min(a.end, b.end)};
}
std::optional<RowNumbers> largest_numbers(const RowQuery& query) {
  const RowNumbers &a = query.numbers[0], &b = query.numbers[1];
  if (!name_no_rows(query)) return std::nullopt;
  return RowNumbers{0, std::max(a.begin, b.begin), std::max(a.end, b.end)};
}

REGISTER_ROW_NUMBERS(sum_numbers, "Add");
REGISTER_ROW_NUMBERS(multiple_numbers, "Mul");
REGISTER_ROW_NUMBERS(least_numbers, "Min");
REGISTER_ROW_NUMBERS(largest_numbers, "Max");

}  // namespace
}  // namespace ortmodule
