// Pointwise ops in ONNX.
#include "onnx/onnx_rules.h"

namespace ortmodule {
namespace {

using C = const OnnxRuleContext&;

// Near 0 the error of u = 1 + x goes out of log(u) by x / (u - 1), as Kahan found.
void lower_log1p(C c) {
  const std::string x = c.in(0);
  const std::string one = c.number(1.0, c.dtype());
  const std::string sum = c.op("Add", {x, one});
  const std::string log = c.op("Log", {sum});
  const std::string step = c.op("Sub", {sum, one});
  const std::string scaled = c.op("Mul", {log, c.op("Div", {x, step})});
  const std::string lost = c.op("Equal", {sum, one});
  const std::string small = c.op("Less", {c.op("Abs", {x}), one});
  c.set(0, "Where", {lost, x, c.op("Where", {small, scaled, log})});
}

// e^x - 1 = tanh(x / 2) * (e^x + 1), where nothing cancels
void lower_expm1(C c) {
  const std::string half = c.op("Mul", {c.in(0), c.number(0.5, c.dtype())});
  const std::string sum = c.op("Add", {c.op("Exp", {c.in(0)}), c.number(1.0, c.dtype())});
  c.set(0, "Mul", {c.op("Tanh", {half}), sum});
}

void lower_rsqrt(C c) { c.set(0, "Reciprocal", {c.op("Sqrt", {c.in(0)})}); }
void lower_silu(C c) { c.set(0, "Mul", {c.in(0), c.op("Sigmoid", {c.in(0)})}); }
void lower_log_sigmoid(C c) { c.set(0, "Neg", {c.op("Softplus", {c.op("Neg", {c.in(0)})})}); }
void lower_not_equal(C c) { c.set(0, "Not", {c.op("Equal", c.ins())}); }

void lower_trunc(C c) {  // sign(x) * floor(|x|)
  c.set(0, "Mul", {c.op("Sign", {c.in(0)}), c.op("Floor", {c.op("Abs", {c.in(0)})})});
}

void lower_softplus(C c) {
  const double beta = c.attrs().number("beta", 1.0);
  const double threshold = c.attrs().number("threshold", 20.0);
  const std::string x = c.in(0);
  const std::string factor = beta == 1.0 ? "" : c.number(beta, c.dtype());
  const std::string inner = beta == 1.0 ? x : c.op("Mul", {x, factor});
  // Beyond 20 x and its softplus are the same but in float64, which stock runtimes do not take.
  const bool is_all = threshold >= 20.0;
  if (is_all && beta == 1.0) return c.set(0, "Softplus", {x});
  std::string y = c.op("Softplus", {inner});
  if (is_all) return c.set(0, "Div", {y, factor});
  if (beta != 1.0) y = c.op("Div", {y, factor});
  c.set(0, "Where", {c.op("Greater", {inner, c.number(threshold, c.dtype())}), x, y});
}

void lower_hard_sigmoid(C c) {
  c.set(0, "HardSigmoid", {c.in(0)}, {{"alpha", 1.0 / 6.0}, {"beta", 0.5}});
}

void lower_clip(C c) {
  auto bound = [&](std::string_view name) {
    return c.attrs().has(name) ? c.number(c.attrs().number(name), c.dtype()) : std::string();
  };
  c.set(0, "Clip", {c.in(0), bound("min"), bound("max")});
}

void lower_cast(C c) { c.set(0, "Cast", {c.in(0)}, {{"to", c.attrs().dtype("to")}}); }

// Whether a remainder with the sign of the dividend is off by the divisor b from one with b's sign.
std::string has_other_sign(C c, const std::string& rest, const std::string& b, DType dtype) {
  const std::string zero = c.number(0.0, dtype);
  const std::string opposite = c.op("Xor", {c.op("Less", {rest, zero}), c.op("Less", {b, zero})});
  return c.op("And", {c.op("Not", {c.op("Equal", {rest, zero})}), opposite});
}

// a mod b with the sign of b; ONNX has that for integers only.
void lower_mod(C c) {
  const bool fmod = c.attrs().flag("fmod");
  const DType dtype = c.dtype();
  if (fmod || !is_floating(dtype))
    return c.set(0, "Mod", c.ins(), {{"fmod", static_cast<int64_t>(fmod)}});
  const std::string rest = c.op("Mod", c.ins(), {{"fmod", int64_t{1}}});
  const std::string wrong = has_other_sign(c, rest, c.in(1), dtype);
  c.set(0, "Where", {wrong, c.op("Add", {rest, c.in(1)}), rest});
}

// As torch: what is left of a when the remainder is taken off divides almost evenly. 16-bit floats
// are computed in 32 bits, literals not rounded.
void lower_floor_div_of_floats(C c) {
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

void lower_floor_div(C c) {
  if (is_floating(c.dtype())) return lower_floor_div_of_floats(c);
  // ONNX divides integers towards zero; a - a mod b makes that the floor.
  c.set(0, "Div", {c.op("Sub", {c.in(0), c.op("Mod", c.ins())}), c.in(1)});
}

// atan(y/x), moved by pi where x < 0; on the axis x = 0 by the sign of y.
void lower_atan2(C c) {
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

// Stock runtimes draw their own numbers: the recorded stream is ours alone.
void lower_dropout(C c) {
  c.set(0, "Dropout",
        {c.in(0), c.number(c.attrs().number("ratio"), DType::Float32), c.number(1.0, DType::Bool)});
}

std::vector<OnnxRule> direct_rules() {
  std::vector<OnnxRule> rules;
  for (std::string_view op : {"Neg",
                              "Abs",
                              "Exp",
                              "Log",
                              "Sqrt",
                              "Reciprocal",
                              "Sin",
                              "Cos",
                              "Tan",
                              "Asin",
                              "Acos",
                              "Atan",
                              "Sinh",
                              "Cosh",
                              "Asinh",
                              "Acosh",
                              "Atanh",
                              "Tanh",
                              "Sigmoid",
                              "Relu",
                              "Erf",
                              "Sign",
                              "Floor",
                              "Ceil",
                              "Round",
                              "Not",
                              "IsNaN",
                              "IsInf",
                              "Mish",
                              "Add",
                              "Sub",
                              "Mul",
                              "Div",
                              "Pow",
                              "Max",
                              "Min",
                              "Equal",
                              "Less",
                              "LessOrEqual",
                              "Greater",
                              "GreaterOrEqual",
                              "And",
                              "Or",
                              "Xor",
                              "Where",
                              "BitwiseAnd",
                              "BitwiseOr",
                              "BitwiseXor",
                              "BitwiseNot",
                              "HardSwish",
                              "Softsign"})
    rules.push_back({op, lower_pointwise});
  rules.push_back({"LeakyRelu", lower_pointwise, {"alpha"}});
  rules.push_back({"Elu", lower_pointwise, {"alpha"}});
  rules.push_back({"Gelu", lower_pointwise, {"approximate"}});
  return rules;
}

const OnnxRuleRegistrar direct(direct_rules());
const OnnxRuleRegistrar others({{"Log1p", lower_log1p},
                                {"Expm1", lower_expm1},
                                {"Rsqrt", lower_rsqrt},
                                {"Silu", lower_silu},
                                {"LogSigmoid", lower_log_sigmoid},
                                {"NotEqual", lower_not_equal},
                                {"Trunc", lower_trunc},
                                {"Softplus", lower_softplus},
                                {"HardSigmoid", lower_hard_sigmoid},
                                {"Clip", lower_clip},
                                {"Cast", lower_cast},
                                {"Mod", lower_mod},
                                {"FloorDiv", lower_floor_div},
                                {"Atan2", lower_atan2},
                                {"Dropout", lower_dropout}});

}  // namespace
}  // namespace ortmodule
