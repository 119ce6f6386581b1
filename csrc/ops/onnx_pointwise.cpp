// Import of pointwise operators: arithmetic, comparison, logic, activations and type conversion.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/element_value.h"
#include "base/error.h"
#include "ops/known_arithmetic.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// Operands as tensors; constants of one element as literals where that leaves the shape.
Values operands(OnnxCall& c) {
  size_t rank = 0;
  bool any = false;
  for (size_t i = 0; i < c.input_count(); ++i)
    if (!c.has(i)) c.refuse(str("operand ", i, " must be given"));
  for (size_t i = 0; i < c.input_count(); ++i) {
    if (c.constant_number(i)) continue;
    rank = std::max(rank, c.rank(i));
    any = true;
  }
  Values values;
  for (size_t i = 0; i < c.input_count(); ++i) {
    const std::optional<double> number = c.constant_number(i);
    const bool exact = number && std::abs(*number) < 9e15;
    const bool finite = number && !(std::abs(*number) < 9e15) && is_floating(c.dtype(i));
    values.push_back(any && (exact || finite) && c.rank(i) <= rank ? c.literal(*number, c.dtype(i))
                                                                   : c.in(i));
  }
  return values;
}

// Before operator set 7, operand 1 was aligned by attributes `broadcast` and `axis`.
Values aligned_operands(OnnxCall& c) {
  if (c.opset() >= 7 || !c.has_attr("axis")) return operands(c);
  Value *a = c.in(0), *b = c.in(1);
  const int64_t axis = c.axis(c.integer("axis"), a->rank());
  Dims dims = b->dims;
  while (dims.size() + static_cast<size_t>(axis) < a->rank()) dims.push_back(1);
  return {a, c.reshape(b, dims)};
}

Values import_binary(OnnxCall& c) { return {c.pointwise(c.node().op, aligned_operands(c))}; }

Values import_unary(OnnxCall& c) { return {c.emit(c.node().op, {c.in(0)})}; }

// NaN has no sign, and stays NaN.
Values import_sign(OnnxCall& c) {
  Value* x = c.in(0);
  Value* sign = c.emit("Sign", {x});
  return {is_floating(x->dtype) ? c.emit("Where", {c.emit("IsNaN", {x}), x, sign}) : sign};
}

// An integer quotient rounds towards zero, which is what the engine's Div does.
Values import_mod(OnnxCall& c) {
  return {c.pointwise("Mod", operands(c), {{"fmod", c.integer("fmod", 0)}})};
}

// The result has the type of the base.
Values import_pow(OnnxCall& c) {
  Values values = aligned_operands(c);
  if (values.size() != 2) c.refuse("there must be two operands");
  const DType dtype = values.at(0)->dtype;
  if (is_floating(dtype)) {
    values.at(1) = c.cast(values.at(1), dtype);
    return {c.pointwise("Pow", values)};
  }
  if (is_integral(values.at(1)->dtype)) {  // exact, and wraps around
    values.at(1) = c.cast(values.at(1), dtype);
    return {c.pointwise("Pow", values)};
  }
  for (Value*& value : values) value = c.cast(value, DType::Float64);
  return {c.cast(c.pointwise("Pow", values), dtype)};
}

template <OpName op>
Values import_chain(OnnxCall& c) {
  const Values values = c.broadcast(operands(c));
  if (values.empty()) c.refuse("there must be an operand");
  Value* result = values.front();
  for (size_t i = 1; i < values.size(); ++i) result = c.emit(op.text, {result, values.at(i)});
  return {values.size() == 1 ? c.emit("Identity", values) : result};
}

template <OpName op>
std::optional<std::vector<KnownValue>> known_chain(OnnxCall& c) {
  std::optional<KnownValue> result;
  for (size_t i = 0; i < c.input_count(); ++i) {
    const KnownValue* x = c.known(i);
    if (!x) return std::nullopt;
    result = result ? known_pairs(c, op.text, *result, *x) : *x;
    if (!result) return std::nullopt;
  }
  if (!result) return std::nullopt;
  return std::vector{std::move(*result)};
}

Values import_mean(OnnxCall& c) {
  Value* sum = import_chain<"Add">(c).front();
  return {c.emit("Div", {sum, c.literal(static_cast<double>(c.input_count()), sum->dtype)})};
}

Values import_standard_where(OnnxCall& c) {
  Values values = {c.in(0), c.in(1), c.in(2)};
  for (size_t i : {1, 2})
    if (const auto number = c.constant_number(i); number && is_floating(c.dtype(i)))
      if (c.rank(i) <= values.at(0)->rank()) values.at(i) = c.literal(*number, c.dtype(i));
  return {c.pointwise("Where", values)};
}

// Bounds are attributes before operator set 11, then operands.
Values import_clip(OnnxCall& c) {
  Value* x = c.in(0);
  const bool by_operands = c.opset() >= 11;
  Attrs attrs;
  for (const auto& [name, i] : {std::pair<const char*, size_t>("min", 1), {"max", 2}}) {
    if (!by_operands) {
      if (c.has_attr(name)) attrs.set(name, c.number(name, 0));
      continue;
    }
    if (!c.has(i)) continue;
    const std::optional<double> number = c.constant_number(i);
    if (number && !std::isnan(*number) && is_floating(x->dtype)) {
      attrs.set(name, *number);
    } else {
      x = c.emit(i == 1 ? "Max" : "Min", {x, c.cast(c.in(i), x->dtype)});
    }
  }
  if (attrs.empty()) return {x == c.in(0) ? c.emit("Identity", {x}) : x};
  if (attrs.has("min") && attrs.has("max") && attrs.number("min") > attrs.number("max"))
    attrs.set("min", attrs.number("max"));  // ONNX: all elements are the maximum
  return {c.emit("Clip", {x}, attrs)};
}

// ONNX: the maximum, where the minimum is larger.
std::optional<std::vector<KnownValue>> known_clip(OnnxCall& c) {
  const KnownValue* x = c.known(0);
  if (!x) return std::nullopt;
  std::optional<KnownValue> result = *x;
  for (const auto& [op, name, i] :
       {std::tuple<const char*, const char*, size_t>("Max", "min", 1), {"Min", "max", 2}}) {
    const bool by_attribute = c.opset() < 11;
    if (by_attribute ? !c.has_attr(name) : !c.has(i)) continue;
    const KnownValue given{x->dtype, {}, {KnownNumber::real(c.number(name, 0))}};
    const KnownValue* bound = by_attribute ? &given : c.known(i);
    if (!bound) return std::nullopt;
    result = known_pairs(c, op, *result, *bound);
    if (!result) return std::nullopt;
  }
  return std::vector{std::move(*result)};
}

// ---- activations -------------------------------------------------------------------------------

Values import_alpha(OnnxCall& c) {  // LeakyRelu, Elu
  const double fallback = c.node().op == "LeakyRelu" ? 0.01 : 1.0;
  return {c.emit(c.node().op, {c.in(0)}, {{"alpha", c.number("alpha", fallback)}})};
}

// Above 40 it is x in all types; exp(x) would overflow above 88 in float32.
Values import_softplus(OnnxCall& c) {
  return {c.emit("Softplus", {c.in(0)}, {{"beta", 1.0}, {"threshold", 40.0}})};
}

Values import_hard_sigmoid(OnnxCall& c) {
  Value* x = c.in(0);
  const double alpha = c.number("alpha", 0.2), beta = c.number("beta", 0.5);
  Value* line = c.emit("Add", {c.emit("Mul", {x, number(c, alpha, x)}), number(c, beta, x)});
  return {c.emit("Clip", {line}, {{"min", 0.0}, {"max", 1.0}})};
}

Values import_swish(OnnxCall& c) {
  Value* x = c.in(0);
  const double alpha = c.number("alpha", 1.0);
  if (alpha == 1.0) return {c.emit("Silu", {x})};
  return {c.emit("Mul", {x, c.emit("Sigmoid", {c.emit("Mul", {x, number(c, alpha, x)})})})};
}

Values import_gelu(OnnxCall& c) {
  return {c.emit("Gelu", {c.in(0)}, {{"approximate", c.word("approximate", {"none", "tanh"})}})};
}

Values import_fast_gelu(OnnxCall& c) {
  Value* x = c.in(0);
  if (c.has(1)) x = c.pointwise("Add", {x, c.in(1)});
  return {c.emit("Gelu", {x}, {{"approximate", "tanh"}})};
}

Values import_quick_gelu(OnnxCall& c) {
  Value* x = c.in(0);
  Value* scaled = c.emit("Mul", {x, number(c, c.number("alpha", 1.702), x)});
  return {c.emit("Mul", {x, c.emit("Sigmoid", {scaled})})};
}

Values import_bias_gelu(OnnxCall& c) {
  return {c.emit("Gelu", {c.pointwise("Add", {c.in(0), c.in(1)})}, {{"approximate", "none"}})};
}

// x < 0 ? slope * x : x
Values import_prelu(OnnxCall& c) {
  Value *x = c.in(0), *slope = c.in(1);
  if (c.opset() < 7 && slope->rank() == 1 && x->rank() > 2) {  // one slope per channel
    Dims dims(x->rank() - 1, DimExpr(1));
    dims.at(0) = slope->dims.at(0);
    slope = c.reshape(slope, dims);
  }
  Value* scaled = c.pointwise("Mul", {x, slope});
  return {c.emit("Where", {c.emit("Less", {x, number(c, 0, x)}), scaled, x})};
}

// scale * (x > 0 ? x : alpha * (e^x - 1))
Value* scaled_elu(OnnxCall& c, Value* x, double alpha, double gamma) {
  Value* y = c.emit("Elu", {x}, {{"alpha", alpha}});
  return gamma == 1.0 ? y : c.emit("Mul", {y, number(c, gamma, y)});
}

Values import_selu(OnnxCall& c) {
  return {scaled_elu(c, c.in(0), c.number("alpha", 1.67326319217681884765625),
                     c.number("gamma", 1.05070102214813232421875))};
}

// max(0, x) + min(0, alpha * (e^(x / alpha) - 1))
Values import_celu(OnnxCall& c) {
  Value* x = c.in(0);
  const double alpha = c.number("alpha", 1.0);
  Value* power = c.emit("Expm1", {c.emit("Div", {x, number(c, alpha, x)})});
  Value* below = c.emit("Min", {c.emit("Mul", {power, number(c, alpha, x)}), number(c, 0, x)});
  return {c.emit("Add", {c.emit("Relu", {x}), below})};
}

Values import_softsign(OnnxCall& c) {
  Value* x = c.in(0);
  return {c.emit("Div", {x, c.emit("Add", {c.emit("Abs", {x}), number(c, 1, x)})})};
}

Values import_thresholded_relu(OnnxCall& c) {
  Value* x = c.in(0);
  Value* above = c.emit("Greater", {x, number(c, c.number("alpha", 1.0), x)});
  return {c.emit("Where", {above, x, number(c, 0, x)})};
}

// x < -lambd ? x + bias : x > lambd ? x - bias : 0
Values import_shrink(OnnxCall& c) {
  Value* given = c.in(0);
  Value* x = is_floating(given->dtype) ? given : c.cast(given, DType::Float64);
  const double lambda = c.number("lambd", 0.5), bias = c.number("bias", 0.0);
  Value* above = c.emit("Where", {c.emit("Greater", {x, number(c, lambda, x)}),
                                  c.emit("Sub", {x, number(c, bias, x)}), number(c, 0, x)});
  Value* y = c.emit("Where", {c.emit("Less", {x, number(c, -lambda, x)}),
                              c.emit("Add", {x, number(c, bias, x)}), above});
  return {c.cast(y, given->dtype)};
}

// `y`, but log(2 x) where x is so large that they are equal: its square would overflow.
Value* log_where_large(OnnxCall& c, Value* x, Value* y) {
  Value* large = c.emit("Greater", {x, number(c, 1e9, x)});
  Value* log = c.emit("Add", {c.emit("Log", {x}), number(c, std::numbers::ln2, x)});
  return c.emit("Where", {large, log, y});
}

// log(x + sqrt(x^2 + 1)), odd, without cancellation: sign(x) log1p(|x| + x^2 / (1 + sqrt(x^2 + 1)))
Values import_asinh(OnnxCall& c) {
  const DType dtype = c.dtype(0);
  Value* x = c.cast(c.in(0), compute_dtype(dtype));
  Value* size = c.emit("Abs", {x});
  Value* square = c.emit("Mul", {x, x});
  Value* root = c.emit("Sqrt", {c.emit("Add", {square, number(c, 1, x)})});
  Value* rest = c.emit("Div", {square, c.emit("Add", {root, number(c, 1, x)})});
  Value* y = c.emit("Log1p", {c.emit("Add", {size, rest})});
  y = c.emit("Mul", {c.emit("Sign", {x}), log_where_large(c, size, y)});
  return {c.cast(y, dtype)};
}

// log(x + sqrt(x^2 - 1)) = log1p(t + sqrt(t) sqrt(t + 2)) with t = x - 1; NaN below 1.
Values import_acosh(OnnxCall& c) {
  const DType dtype = c.dtype(0);
  Value* x = c.cast(c.in(0), compute_dtype(dtype));
  Value* t = c.emit("Sub", {x, number(c, 1, x)});
  Value* above = c.emit("Sqrt", {c.emit("Add", {t, number(c, 2, x)})});
  Value* root = c.emit("Mul", {c.emit("Sqrt", {t}), above});
  Value* y = c.emit("Log1p", {c.emit("Add", {t, root})});
  return {c.cast(log_where_large(c, x, y), dtype)};
}

// log1p(2 x / (1 - x)) / 2
Values import_atanh(OnnxCall& c) {
  Value* x = c.in(0);
  Value* ratio =
      c.emit("Div", {c.emit("Mul", {x, number(c, 2, x)}), c.emit("Sub", {number(c, 1, x), x})});
  return {c.emit("Mul", {c.emit("Log1p", {ratio}), number(c, 0.5, x)})};
}

Values import_is_inf(OnnxCall& c) {
  Value* x = c.in(0);
  const bool negative = c.flag("detect_negative", true), positive = c.flag("detect_positive", true);
  Value* infinite = c.emit("IsInf", {x});
  if (negative && positive) return {infinite};
  if (!negative && !positive) return {c.full(0.0, x->dims, DType::Bool)};
  Value* side = c.emit(positive ? "Greater" : "Less", {x, number(c, 0, x)});
  return {c.emit("And", {infinite, side})};
}

// Elements that are dropped at random, the others scaled; attribute `seed` is not read, as for all
// random operators.
Values trained_dropout(OnnxCall& c, Value* x, double ratio) {
  if (!(ratio >= 0 && ratio < 1))
    c.refuse(str("ratio must be at least 0 and below 1, but found ", ratio));
  Value* drawn =
      c.emit("RandomUniform", {},
             {{"shape", x->dims}, {"dtype", DType::Float32}, {"rng", c.next_rng_stream()}});
  Value* mask = c.emit("GreaterOrEqual", {drawn, number(c, ratio, drawn)});
  Value* kept = c.emit("Mul", {x, number(c, 1 / (1 - ratio), x)});
  return {c.emit("Where", {mask, kept, number(c, 0, kept)}), mask};
}

// Without training_mode the identity, and a mask of ones if it is wanted.
Values import_dropout(OnnxCall& c) {
  Value* x = c.in(0);
  if (c.has(2) && c.fixed_integers(2).at(0) != 0) {
    const double ratio = c.has(1) ? c.fixed_numbers(1).at(0) : 0.5;
    if (ratio != 0) return trained_dropout(c, x, ratio);
  }
  const DType mask = c.opset() >= 10 ? DType::Bool : x->dtype;
  return {c.emit("Identity", {x}), c.wants_output(1) ? c.full(1.0, x->dims, mask) : nullptr};
}

Values import_swi_glu(OnnxCall& c) { return {c.pointwise("Mul", {import_swish(c)[0], c.in(1)})}; }

REGISTER_ONNX({{"Add", 1, import_binary, known_binary},
               {"Sub", 1, import_binary, known_binary},
               {"Mul", 1, import_binary, known_binary},
               {"Div", 1, import_binary, known_binary},
               {"Mod", 10, import_mod, known_binary},
               {"Pow", 1, import_pow, known_binary},
               {"Equal", 1, import_binary, known_binary, "", nullptr, reads_texts(3)},
               {"Less", 1, import_binary, known_binary},
               {"LessOrEqual", 12, import_binary, known_binary},
               {"Greater", 1, import_binary, known_binary},
               {"GreaterOrEqual", 12, import_binary, known_binary},
               {"And", 1, import_binary, known_binary},
               {"Or", 1, import_binary, known_binary},
               {"Xor", 1, import_binary, known_binary},
               {"BitwiseAnd", 18, import_binary},
               {"BitwiseOr", 18, import_binary},
               {"BitwiseXor", 18, import_binary},
               {"BitwiseNot", 18, import_unary},
               {"Max", 1, import_chain<"Max">, known_chain<"Max">},
               {"Min", 1, import_chain<"Min">, known_chain<"Min">},
               {"Sum", 1, import_chain<"Add">, known_chain<"Add">},
               {"Mean", 1, import_mean},
               {"Where", 9, import_standard_where, known_where, "", nullptr, moves_texts(6)},
               {"Clip", 1, import_clip, known_clip},
               {"Dropout", 1, import_dropout}});

REGISTER_ONNX({{"Neg", 1, import_unary, known_unary},
               {"Abs", 1, import_unary, known_unary},
               {"Floor", 1, import_unary, known_unary},
               {"Ceil", 1, import_unary, known_unary},
               {"Round", 11, import_unary, known_unary},
               {"Sqrt", 1, import_unary, known_unary},
               {"Not", 1, import_unary, known_unary},
               {"Exp", 1, import_unary},
               {"Log", 1, import_unary},
               {"Reciprocal", 1, import_unary},
               {"Erf", 9, import_unary},
               {"Sin", 7, import_unary},
               {"Cos", 7, import_unary},
               {"Tan", 7, import_unary},
               {"Asin", 7, import_unary},
               {"Acos", 7, import_unary},
               {"Atan", 7, import_unary},
               {"Sinh", 9, import_unary},
               {"Cosh", 9, import_unary},
               {"Sign", 9, import_sign, known_unary},
               {"IsNaN", 9, import_unary},
               {"IsInf", 10, import_is_inf},
               {"Asinh", 9, import_asinh},
               {"Acosh", 9, import_acosh},
               {"Atanh", 9, import_atanh}});

REGISTER_ONNX({{"Relu", 1, import_unary},
               {"Tanh", 1, import_unary},
               {"Sigmoid", 1, import_unary},
               {"HardSwish", 14, import_unary},
               {"Mish", 18, import_unary},
               {"LeakyRelu", 1, import_alpha},
               {"Elu", 1, import_alpha},
               {"Softplus", 1, import_softplus},
               {"HardSigmoid", 1, import_hard_sigmoid},
               {"Swish", 24, import_swish},
               {"Gelu", 20, import_gelu},
               {"PRelu", 1, import_prelu},
               {"Selu", 1, import_selu},
               {"Celu", 12, import_celu},
               {"Softsign", 1, import_softsign},
               {"ThresholdedRelu", 1, import_thresholded_relu},
               {"Shrink", 9, import_shrink},
               {"SwiGLU", 25, import_swi_glu},
               {"Gelu", 1, import_gelu, nullptr, "com.microsoft"},
               {"FastGelu", 1, import_fast_gelu, nullptr, "com.microsoft"},
               {"QuickGelu", 1, import_quick_gelu, nullptr, "com.microsoft"},
               {"BiasGelu", 1, import_bias_gelu, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
