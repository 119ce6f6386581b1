#include "ops/known_arithmetic.h"

#include <algorithm>
#include <cmath>

#include "base/element_value.h"
#include "base/layout.h"

namespace ortmodule {
namespace {

// The number as a quotient of sizes, if it is one exactly.
std::optional<KnownNumber> as_ratio(const KnownNumber& number) {
  if (!number.is_real()) return number;
  constexpr int64_t kMostDenominator = 1 << 20;
  for (int64_t denominator = 1; denominator <= kMostDenominator; denominator *= 2) {
    const double numerator = number.real() * static_cast<double>(denominator);
    if (std::abs(numerator) > 1e15) return std::nullopt;
    if (numerator == std::floor(numerator))
      return KnownNumber::ratio(DimExpr(static_cast<int64_t>(numerator)), denominator);
  }
  return std::nullopt;
}

double fixed(OnnxCall& c, const KnownNumber& number) {
  if (number.is_real()) return number.real();
  return static_cast<double>(c.sizes().fix(number.numerator())) /
         static_cast<double>(number.denominator());
}

KnownNumber rounded(double value, DType dtype) {
  if (is_floating(dtype)) return KnownNumber::real(element_value(value, dtype));
  return KnownNumber(static_cast<int64_t>(value));
}

// Mod with attribute fmod: the remainder has the sign of the dividend.
constexpr std::string_view kTruncatedMod = "Mod.fmod";

bool is_mod(std::string_view op) { return op == "Mod" || op == kTruncatedMod; }

double arithmetic(std::string_view op, double a, double b, bool integral) {
  if (op == "Add") return a + b;
  if (op == "Sub") return a - b;
  if (op == "Mul") return a * b;
  if (op == "Div") return integral ? std::trunc(a / b) : a / b;
  if (op == "Min") return std::isnan(a) || a < b ? a : b;
  if (op == "Max") return std::isnan(a) || a > b ? a : b;
  if (op == "Pow") return std::pow(a, b);
  if (op == kTruncatedMod) return std::fmod(a, b);
  return a - std::floor(a / b) * b;  // Mod
}

bool is_arithmetic(std::string_view op) {
  constexpr std::string_view kOps[] = {"Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Pow"};
  return std::find(std::begin(kOps), std::end(kOps), op) != std::end(kOps);
}

bool is_comparison(std::string_view op) {
  constexpr std::string_view kOps[] = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"};
  return std::find(std::begin(kOps), std::end(kOps), op) != std::end(kOps);
}

bool is_logic(std::string_view op) { return op == "And" || op == "Or" || op == "Xor"; }

// a op b for quotients of sizes, as an expression if there is one.
std::optional<KnownNumber> ratio_arithmetic(OnnxCall& c, std::string_view op, const KnownNumber& a,
                                            const KnownNumber& b, bool integral) {
  const DimExpr x = a.numerator() * DimExpr(b.denominator());
  const DimExpr y = b.numerator() * DimExpr(a.denominator());
  const int64_t common = a.denominator() * b.denominator();
  if (common > (int64_t{1} << 40)) return std::nullopt;
  auto quotient = [](const DimExpr& numerator, int64_t denominator) {
    return numerator.is_constant() && numerator.value() % denominator == 0
               ? KnownNumber(numerator.value() / denominator)
               : KnownNumber::ratio(numerator, denominator);
  };
  if (op == "Add") return quotient(x + y, common);
  if (op == "Sub") return quotient(x - y, common);
  if (op == "Mul") return quotient(a.numerator() * b.numerator(), common);
  if (op == "Min") {
    if (integral) return KnownNumber(DimExpr::min(a.numerator(), b.numerator()));
    return c.sizes().at_most(x, y) ? a : b;
  }
  if (op == "Max") {
    if (integral) return KnownNumber(DimExpr::max(a.numerator(), b.numerator()));
    return c.sizes().at_most(x, y) ? b : a;
  }
  if (op != "Div" && !is_mod(op)) return std::nullopt;
  if (!integral) {
    if (op != "Div" || !b.numerator().is_constant() || b.numerator().value() <= 0)
      return std::nullopt;
    return quotient(a.numerator() * DimExpr(b.denominator()),
                    a.denominator() * b.numerator().value());
  }
  // ONNX rounds towards zero: the same as the floor if neither is negative.
  if (!c.sizes().at_most(0, a.numerator()) || !c.sizes().at_most(1, b.numerator()))
    return std::nullopt;
  return KnownNumber(op == "Div" ? DimExpr::floor_div(a.numerator(), b.numerator())
                                 : DimExpr::mod(a.numerator(), b.numerator()));
}

bool compare(OnnxCall& c, std::string_view op, const KnownNumber& a, const KnownNumber& b) {
  const std::optional<KnownNumber> p = as_ratio(a), q = as_ratio(b);
  if (!p || !q) {
    const double x = fixed(c, a), y = fixed(c, b);
    if (op == "Equal") return x == y;
    if (op == "Less") return x < y;
    if (op == "LessOrEqual") return x <= y;
    return op == "Greater" ? x > y : x >= y;
  }
  const DimExpr x = p->numerator() * DimExpr(q->denominator());
  const DimExpr y = q->numerator() * DimExpr(p->denominator());
  if (op == "Equal") return c.sizes().equal(x, y);
  if (op == "Less") return c.sizes().less(x, y);
  if (op == "LessOrEqual") return c.sizes().at_most(x, y);
  return op == "Greater" ? c.sizes().less(y, x) : c.sizes().at_most(y, x);
}

bool truth(OnnxCall& c, const KnownNumber& number) {
  if (number.is_real()) return number.real() != 0;
  return !c.sizes().equal(number.numerator(), 0);
}

// Sizes of the broadcast result, or nullopt if the shapes do not match.
std::optional<Sizes> broadcast_sizes(const Sizes& a, const Sizes& b) {
  Sizes result = a.size() >= b.size() ? a : b;
  for (const Sizes* each : {&a, &b})
    for (size_t back = 1; back <= each->size(); ++back) {
      int64_t& size = result.at(result.size() - back);
      const int64_t other = (*each)[each->size() - back];
      if (size == 1) size = other;
      if (other != 1 && other != size) return std::nullopt;
    }
  return result;
}

// The element of `value` at a position of the broadcast result.
const KnownNumber& element_of(const KnownValue& value, const Sizes& result, int64_t position) {
  int64_t index = 0, stride = 1;
  for (size_t back = 1; back <= result.size(); ++back) {
    const int64_t size = result.at(result.size() - back);
    const int64_t at = position % size;
    position /= size;
    if (back > value.dims.size()) continue;
    const int64_t own = value.dims.at(value.dims.size() - back);
    if (own != 1) index += at * stride;
    stride *= own;
  }
  return value.elements.at(static_cast<size_t>(index));
}

// Decisions on many elements of an input are left to the run.
bool decides_on_content(const OnnxCall& c, const KnownValue& value) {
  return value.elements.size() > 1 && c.is_input_content(value);
}

}  // namespace

KnownNumber known_cast(OnnxCall& c, const KnownNumber& number, DType to) {
  if (to == DType::Bool) return KnownNumber(int64_t{truth(c, number) ? 1 : 0});
  if (is_floating(to)) {
    if (number.is_real()) return rounded(number.real(), to);
    return number;  // sizes are small enough to be exact
  }
  if (number.is_integer()) {
    if (!number.numerator().is_constant()) return number;
    const int64_t value = number.numerator().value();
    if (to == DType::Int64) return number;
    return KnownNumber(static_cast<int64_t>(element_value(static_cast<double>(value), to)));
  }
  if (!number.is_real() && c.sizes().at_most(0, number.numerator()))
    return KnownNumber(DimExpr::floor_div(number.numerator(), number.denominator()));
  return KnownNumber(static_cast<int64_t>(std::trunc(fixed(c, number))));
}

KnownNumber known_number(OnnxCall& c, std::string_view op, const KnownNumber& a,
                         const KnownNumber& b, DType dtype) {
  if (is_comparison(op)) return KnownNumber(int64_t{compare(c, op, a, b) ? 1 : 0});
  if (is_logic(op)) {
    const bool x = truth(c, a), y = truth(c, b);
    return KnownNumber(int64_t{op == "And" ? x && y : op == "Or" ? x || y : x != y});
  }
  const bool integral = !is_floating(dtype);
  if (!(a.is_real() && b.is_real())) {
    const std::optional<KnownNumber> p = as_ratio(a), q = as_ratio(b);
    if (p && q)
      if (auto result = ratio_arithmetic(c, op, *p, *q, integral)) return *result;
  }
  return rounded(arithmetic(op, fixed(c, a), fixed(c, b), integral), dtype);
}

std::optional<KnownValue> known_pairs(OnnxCall& c, std::string_view op, const KnownValue& a,
                                      const KnownValue& b) {
  const bool decides = is_comparison(op) || is_logic(op);
  if (a.dtype != b.dtype) return std::nullopt;
  if (decides && (decides_on_content(c, a) || decides_on_content(c, b))) return std::nullopt;
  // A power of contents is data, and so is one that wraps around.
  const bool power = op == "Pow" && !is_floating(a.dtype);
  if (power && (decides_on_content(c, a) || decides_on_content(c, b))) return std::nullopt;
  const std::optional<Sizes> sizes = broadcast_sizes(a.dims, b.dims);
  if (!sizes || element_count(*sizes) > KnownValue::kMostElements) return std::nullopt;
  KnownValue result{decides ? DType::Bool : a.dtype, sizes->vector(), {}};
  for (int64_t i = 0; i < element_count(*sizes); ++i) {
    const KnownNumber &x = element_of(a, *sizes, i), &y = element_of(b, *sizes, i);
    // Left to the run, which refuses it.
    if ((op == "Div" || is_mod(op)) && !is_floating(a.dtype) &&
        c.sizes().equal(y.numerator(), DimExpr(0)))
      return std::nullopt;
    result.elements.push_back(known_number(c, op, x, y, a.dtype));
    const KnownNumber& last = result.elements.back();
    if (power && last.is_constant() && std::abs(last.value()) >= 0x1p31) return std::nullopt;
  }
  return result;
}

std::optional<std::vector<KnownValue>> known_binary(OnnxCall& c) {
  const std::string& op = c.node().op;
  if (!is_comparison(op) && !is_logic(op) && !is_arithmetic(op)) return std::nullopt;
  const KnownValue *a = c.known(0), *b = c.known(1);
  if (!a || !b) return std::nullopt;
  const bool truncated = op == "Mod" && c.flag("fmod");
  std::optional<KnownValue> result = known_pairs(c, truncated ? kTruncatedMod : op, *a, *b);
  if (!result) return std::nullopt;
  return std::vector{std::move(*result)};
}

std::optional<std::vector<KnownValue>> known_unary(OnnxCall& c) {
  const KnownValue* x = c.known(0);
  if (!x) return std::nullopt;
  const std::string& op = c.node().op;
  KnownValue result{x->dtype, x->dims, {}};
  for (const KnownNumber& number : x->elements) {
    if (op == "Identity") {
      result.elements.push_back(number);
    } else if (op == "Neg") {
      result.elements.push_back(known_number(c, "Mul", number, KnownNumber(-1), x->dtype));
    } else if (op == "Not") {
      if (decides_on_content(c, *x)) return std::nullopt;
      result.elements.push_back(KnownNumber(int64_t{truth(c, number) ? 0 : 1}));
    } else if ((op == "Floor" || op == "Ceil") && !number.is_real()) {
      const DimExpr lift = op == "Ceil" ? DimExpr(number.denominator() - 1) : DimExpr(0);
      result.elements.push_back(
          KnownNumber(DimExpr::floor_div(number.numerator() + lift, number.denominator())));
    } else {
      const double value = fixed(c, number);
      const double y = op == "Floor"  ? std::floor(value)
                       : op == "Ceil" ? std::ceil(value)
                       : op == "Abs"  ? std::abs(value)
                       : op == "Sqrt" ? std::sqrt(value)
                       : op == "Sign" ? static_cast<double>((value > 0) - (value < 0))
                                      : std::nearbyint(value);  // Round
      result.elements.push_back(rounded(y, x->dtype));
    }
  }
  return std::vector{std::move(result)};
}

std::optional<std::vector<KnownValue>> known_where(OnnxCall& c) {
  const KnownValue *condition = c.known(0), *a = c.known(1), *b = c.known(2);
  if (!condition || !a || !b || decides_on_content(c, *condition)) return std::nullopt;
  const std::optional<Sizes> both = broadcast_sizes(a->dims, b->dims);
  if (!both) return std::nullopt;
  const std::optional<Sizes> sizes = broadcast_sizes(*both, condition->dims);
  if (!sizes || element_count(*sizes) > KnownValue::kMostElements) return std::nullopt;
  KnownValue result{a->dtype, sizes->vector(), {}};
  for (int64_t i = 0; i < element_count(*sizes); ++i)
    result.elements.push_back(
        element_of(truth(c, element_of(*condition, *sizes, i)) ? *a : *b, *sizes, i));
  return std::vector{std::move(result)};
}

}  // namespace ortmodule
