// Decompositions of torch's other random operators into uniform and normal numbers

#include <cmath>

#include "ops/op_def.h"
#include "ops/random_uniform.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// Significant bits: all integers up to 2^bits are exact.
int significant_bits(DType dtype) {
  switch (dtype) {
    case DType::Float64: return 53;
    case DType::Float32: return 24;
    case DType::Float16: return 11;
    default: return 8;
  }
}

// --- continuous ----------------------------------------------------------------------------------
// log(1 - u) <= 0 for uniform u.
Value* log_of_rest(TorchCall& t, DType dtype) {
  return t.emit("Log", {t.emit("Sub", {t.literal(1.0, dtype), draw_uniform(t, dtype)})});
}

// By inversion. As in torch, never 0: Gumbel noise is the logarithm of it.
Values convert_exponential(TorchCall& t) {
  require_real(t, true);
  require_default_generator(t);
  const DType dtype = t.output().dtype, inside = compute_dtype(dtype);
  const double rate = t.number_or("lambd", 1.0);
  if (!(rate > 0.0)) t.refuse("lambd must be positive");
  Value* least = t.literal(std::exp2(-significant_bits(inside)), inside);
  Value* y = t.emit("Max", {t.emit("Neg", {log_of_rest(t, inside)}), least});
  if (rate != 1.0) y = t.emit("Div", {y, t.literal(rate, inside)});
  return {t.cast(y, dtype)};
}

Values convert_log_normal(TorchCall& t) {
  require_real(t, true);
  require_default_generator(t);
  const DType dtype = t.output().dtype, inside = compute_dtype(dtype);
  const double mean = t.number_or("mean", 1.0), deviation = t.number_or("std", 2.0);
  if (!(deviation > 0.0)) t.refuse("std must be positive");
  Value* scaled = t.emit("Mul", {draw_normal(t, inside), t.literal(deviation, inside)});
  return {t.cast(t.emit("Exp", {t.emit("Add", {scaled, t.literal(mean, inside)})}), dtype)};
}

// By inversion: median + sigma tan(pi (u - 1/2)).
Values convert_cauchy(TorchCall& t) {
  require_real(t, true);
  require_default_generator(t);
  const DType dtype = t.output().dtype, inside = compute_dtype(dtype);
  const double median = t.number_or("median", 0.0), sigma = t.number_or("sigma", 1.0);
  if (!(sigma > 0.0)) t.refuse("sigma must be positive");
  Value* centred = t.emit("Sub", {draw_uniform(t, inside), t.literal(0.5, inside)});
  Value* tangent = t.emit("Tan", {t.emit("Mul", {centred, t.literal(M_PI, inside)})});
  Value* scaled = t.emit("Mul", {tangent, t.literal(sigma, inside)});
  return {t.cast(t.emit("Add", {scaled, t.literal(median, inside)}), dtype)};
}

// --- discrete ------------------------------------------------------------------------------------
// The number of trials up to the first success, at least 1.
Values convert_geometric(TorchCall& t) {
  require_real(t);
  require_default_generator(t);
  const DType dtype = t.output().dtype;
  const DType inside = is_floating(dtype) ? compute_dtype(dtype) : DType::Float64;
  const double p = t.number("p");
  if (!(p > 0.0 && p < 1.0)) t.refuse("p must be between 0 and 1");
  Value* ratio = t.emit("Div", {log_of_rest(t, inside), t.literal(std::log1p(-p), inside)});
  Value* trials = t.emit("Max", {t.emit("Ceil", {ratio}), t.literal(1.0, inside)});
  return {t.cast(trials, dtype)};
}

// The integers that the type holds and float64 holds exactly.
ValueRange exact_integers(DType dtype) {
  if (dtype == DType::Bool) return {0, 1};
  if (dtype == DType::UInt8) return {0, 255};
  if (is_floating(dtype) || dtype == DType::Int64) {
    const double most = std::exp2(is_floating(dtype) ? significant_bits(dtype) : 53);
    return {-most, most};
  }
  const double half = std::exp2(8 * static_cast<double>(size_of(dtype)) - 1);
  return {-half, half - 1};
}

// Uniform integers of [low, low + count), computed in float64.
Values uniform_integers(TorchCall& t, const DimExpr& low, const DimExpr& count) {
  require_real(t);
  require_default_generator(t);
  const DType dtype = t.output().dtype;
  // Sizes without a known bound stay far below 2^52.
  const auto greatest = [](const ValueRange& range) {
    return std::isinf(range.greatest) ? 0x1p52 : range.greatest;
  };
  const ValueRange counts = t.range_of(count), lows = t.range_of(low),
                   exact = exact_integers(dtype);
  if (!(counts.least >= 1)) t.refuse("it must be certain that low is less than high");
  const double most = greatest(lows) + greatest(counts) - 1;
  if (lows.least < exact.least || most > exact.greatest || greatest(counts) > 0x1p53)
    t.refuse(str("its numbers must be exact in float64 and ", name_of(dtype)));
  Value* unit = draw_uniform(t, DType::Float64);
  Value* scaled = t.emit("Mul", {unit, t.size_literal(count, DType::Float64)});
  Value* y = t.emit("Floor", {scaled});
  if (!(low == DimExpr(0))) y = t.emit("Add", {y, t.size_literal(low, DType::Float64)});
  return {t.cast(y, dtype)};
}

Values convert_randint(TorchCall& t) {
  const DimExpr low = t.has("low") ? t.dim("low") : DimExpr(0);
  return uniform_integers(t, low, t.dim("high") - low);
}

// `x.random_()`: every integer from 0 on that the type holds or, for floats, holds exactly.
Values convert_random(TorchCall& t) {
  const DType dtype = t.output().dtype;
  if (dtype == DType::Int64) t.refuse("its numbers must be exact in float64");
  const double most = exact_integers(dtype).greatest;
  return uniform_integers(t, DimExpr(0), DimExpr(static_cast<int64_t>(most) + 1));
}

Values convert_random_below(TorchCall& t) { return uniform_integers(t, DimExpr(0), t.dim("to")); }

REGISTER_TORCH({{"aten.exponential.default", convert_exponential},
                {"aten.log_normal.default", convert_log_normal},
                {"aten.cauchy.default", convert_cauchy},
                {"aten.geometric.default", convert_geometric},
                {"aten.randint.default", convert_randint},
                {"aten.randint.low", convert_randint},
                {"aten.randint_like.default", convert_randint},
                {"aten.randint_like.low_dtype", convert_randint},
                {"aten.random.default", convert_random},
                {"aten.random.to", convert_random_below}});

}  // namespace
}  // namespace ortmodule
