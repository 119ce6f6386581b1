// Import of reductions, cumulative sums, sorting and random numbers.
#include <algorithm>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "ops/known_arithmetic.h"
#include "ops/onnx_cast.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

struct Reduction {
  std::vector<int64_t> axes;
  bool keepdims = true;
  bool nothing = false;  // no axes, with noop_with_empty_axes
};

// Axes are an operand since operator set 18 (ReduceSum: 13), an attribute before.
Reduction read_reduction(OnnxCall& c, size_t rank) {
  Reduction r;
  r.axes = c.axes(1, std::max<size_t>(rank, 1));
  if (rank == 0) r.axes.clear();  // a scalar has an axis for onnxruntime
  r.keepdims = c.flag("keepdims", true);
  if (!r.axes.empty()) return r;
  r.nothing = c.flag("noop_with_empty_axes");
  r.axes.resize(rank);
  std::iota(r.axes.begin(), r.axes.end(), 0);
  return r;
}

Value* reduce(OnnxCall& c, std::string_view op, Value* x, const Reduction& r) {
  if (r.nothing) return x;
  if (x->rank() == 0) return c.emit("Identity", {x});
  return c.reduce(op, x, r.axes, r.keepdims);
}

// By int64, in which sums and products of uint64 have the same bits.
Value* reduce_unsigned(OnnxCall& c, std::string_view op, Value* x, const Reduction& r) {
  const DType dtype = x->dtype;
  const bool extremum = op == "ReduceMax" || op == "ReduceMin";
  if (dtype == DType::UInt64 && extremum)
    return flipped_order(c, reduce(c, op, flipped_order(c, x), r));
  if (dtype == DType::UInt64 && op == "ReduceMean") c.unsupported("a mean of uint64 has no kernel");
  return c.cast(reduce(c, op, c.cast(x, DType::Int64), r), dtype);
}

// How many elements each result is computed from.
DimExpr reduced_count(const Value* x, const Reduction& r) {
  DimExpr count = 1;
  for (int64_t axis : r.axes) count = count * x->dims.at(static_cast<size_t>(axis));
  return count;
}

// The sum over the number of elements, rounded towards zero; of none, 0.
Value* integer_mean(OnnxCall& c, Value* x, const Reduction& r) {
  const DimExpr count = reduced_count(x, r);
  Value* sum = reduce(c, "ReduceSum", x, r);
  if (c.sizes().at_most(count, 0)) return sum;
  return c.emit("Div", {sum, size_number(c, count, x->dtype)});
}

// The limit of the type, which is the extremum of no elements; nullopt where the kernel has it.
std::optional<double> extremum_of_none(DType dtype, bool largest) {
  switch (dtype) {
    case DType::Bool: return largest ? 0.0 : 1.0;
    case DType::UInt8: return largest ? 0.0 : 255.0;
    case DType::Int8: return largest ? -128.0 : 127.0;
    case DType::Int16: return largest ? -32768.0 : 32767.0;
    case DType::Int32: return largest ? -2147483648.0 : 2147483647.0;
    default: return std::nullopt;
  }
}

// Small integers are reduced in a wider type, which the result does not show, if it may not fit
// their own.
Value* reduce_integers(OnnxCall& c, std::string_view op, Value* x, const Reduction& r) {
  const DType dtype = x->dtype;
  const bool largest = op == "ReduceMax", extremum = largest || op == "ReduceMin";
  const bool is_byte = dtype == DType::Int8 || dtype == DType::UInt8;
  const bool widens = dtype == DType::Bool || (is_byte && !extremum);
  Value* y = reduce(c, op, widens ? c.cast(x, DType::Int32) : x, r);
  const auto limit = extremum_of_none(dtype, largest);
  if (limit && extremum && c.sizes().at_most(reduced_count(x, r), 0))
    y = c.emit("Clip", {y}, {{"min", *limit}, {"max", *limit}});
  return c.cast(y, dtype);
}

template <OpName op>
Values import_reduce(OnnxCall& c) {
  Value* x = c.in(0);
  const Reduction r = read_reduction(c, x->rank());
  const bool mean = std::string_view(op.text) == "ReduceMean";
  if (mean && (x->dtype == DType::Int32 || x->dtype == DType::Int64) && !r.nothing)
    return {integer_mean(c, x, r)};
  if (is_wide_unsigned(x->dtype)) return {reduce_unsigned(c, op.text, x, r)};
  if (is_integral(x->dtype) || x->dtype == DType::Bool) return {reduce_integers(c, op.text, x, r)};
  return {reduce(c, op.text, x, r)};
}

Value* square(OnnxCall& c, Value* x) { return c.emit("Mul", {x, x}); }

Values import_reduce_l1(OnnxCall& c) {
  Value* x = c.in(0);
  return {reduce(c, "ReduceSum", c.emit("Abs", {x}), read_reduction(c, x->rank()))};
}

Values import_reduce_l2(OnnxCall& c) {
  Value* x = c.in(0);
  const Reduction r = read_reduction(c, x->rank());
  if (is_floating(x->dtype)) return {c.emit("Sqrt", {reduce(c, "ReduceSum", square(c, x), r)})};
  Value* wide = c.cast(x, DType::Float64);
  return {c.cast(c.emit("Sqrt", {reduce(c, "ReduceSum", square(c, wide), r)}), x->dtype)};
}

Values import_reduce_sum_square(OnnxCall& c) {
  Value* x = c.in(0);
  return {reduce(c, "ReduceSum", square(c, x), read_reduction(c, x->rank()))};
}

Values import_reduce_log_sum(OnnxCall& c) {
  Value* given = c.in(0);
  Value* x = is_floating(given->dtype) ? given : c.cast(given, DType::Float64);
  Value* y = c.emit("Log", {reduce(c, "ReduceSum", x, read_reduction(c, x->rank()))});
  return {c.cast(y, given->dtype)};
}

// max + log(sum(e^(x - max))), where an infinite maximum is left out
Values import_reduce_log_sum_exp(OnnxCall& c) {
  Value* given = c.in(0);
  const Reduction r = read_reduction(c, given->rank());
  if (r.nothing) return {c.emit("Identity", {given})};
  Value* x = is_floating(given->dtype) ? given : c.cast(given, DType::Float64);
  Reduction kept = r;
  kept.keepdims = true;
  const DimExpr count = product(x->dims);
  if (count.is_constant() && count.value() == 0)
    return {c.cast(c.emit("Log", {reduce(c, "ReduceSum", x, r)}), given->dtype)};
  Value* most = reduce(c, "ReduceMax", x, kept);
  Value* shift = c.emit("Where", {c.emit("IsInf", {most}), c.literal(0, x->dtype), most});
  Value* sum = reduce(c, "ReduceSum", c.emit("Exp", {c.emit("Sub", {x, shift})}), kept);
  Value* y = c.emit("Add", {c.emit("Log", {sum}), shift});
  if (!r.keepdims) {
    Dims dims;
    for (size_t d = 0; d < y->rank(); ++d)
      if (std::find(r.axes.begin(), r.axes.end(), static_cast<int64_t>(d)) == r.axes.end())
        dims.push_back(y->dims.at(d));
    y = c.reshape(y, dims);
  }
  return {c.cast(y, given->dtype)};
}

// The product, sum, minimum or maximum of sizes.
std::optional<std::vector<KnownValue>> known_reduce(OnnxCall& c) {
  const KnownValue* x = c.known(0);
  if (!x || x->dims.size() != 1 || x->elements.empty() || is_floating(x->dtype))
    return std::nullopt;
  if (c.has(1) && !c.known(1)) return std::nullopt;
  const Reduction r = read_reduction(c, 1);
  if (r.nothing) return std::nullopt;
  const std::string& op = c.node().op;
  const std::string_view by = op == "ReduceProd"  ? "Mul"
                              : op == "ReduceSum" ? "Add"
                              : op == "ReduceMax" ? "Max"
                                                  : "Min";
  KnownNumber result = x->elements.front();
  for (size_t i = 1; i < x->elements.size(); ++i)
    result = known_number(c, by, result, x->elements.at(i), x->dtype);
  return std::vector{KnownValue{
      x->dtype, r.keepdims ? std::vector<int64_t>{1} : std::vector<int64_t>{}, {result}}};
}

// ---- ArgMax, CumSum, TopK ----------------------------------------------------------------------

Value* flipped(OnnxCall& c, Value* x, int64_t axis) {
  const DimExpr size = x->dims.at(static_cast<size_t>(axis));
  Value* places = c.emit("Range", {},
                         {{"start", size - DimExpr(1)},
                          {"limit", DimExpr(-1)},
                          {"delta", DimExpr(-1)},
                          {"dtype", DType::Int64}});
  return c.emit("Gather", {x, places}, {{"axis", axis}});
}

Values import_arg(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->rank() == 0) {
    c.axis_attr("axis", 0, 1);
    return {c.full(0.0, {}, DType::Int64)};
  }
  const int64_t axis = c.axis_attr("axis", 0, x->rank());
  const Attrs attrs{{"axis", axis}, {"keepdims", c.integer("keepdims", 1)}};
  if (x->dtype == DType::UInt64) x = flipped_order(c, x);
  if (is_wide_unsigned(x->dtype)) x = c.cast(x, DType::Int64);
  if (!c.flag("select_last_index")) return {c.emit(c.node().op, {x}, attrs)};
  // The last of equal elements is the first from the end.
  Value* from_end = c.emit(c.node().op, {flipped(c, x, axis)}, attrs);
  const DimExpr last = x->dims.at(static_cast<size_t>(axis)) - DimExpr(1);
  return {c.emit("Sub", {c.graph().literal(last, DType::Int64), from_end})};
}

// Exclusive sums are the sums behind a zero, without the total: a difference of sums would lose
// what is small beside them.
Values import_cumsum(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t axis = c.axis(c.fixed_integers(1).at(0), x->rank());
  const DType dtype = x->dtype;
  if (is_wide_unsigned(dtype)) x = c.cast(x, DType::Int64);  // its sums have the same bits
  const bool reverse = c.flag("reverse"), exclusive = c.flag("exclusive");
  const DimExpr size = x->dims.at(static_cast<size_t>(axis));
  if (exclusive) {
    Dims one = x->dims;
    one.at(static_cast<size_t>(axis)) = 1;
    Value* zero = c.full(0.0, one, x->dtype);
    x = c.concat(reverse ? Values{x, zero} : Values{zero, x}, axis);
  }
  Value* y = c.emit("CumSum", {x}, {{"axis", axis}, {"reverse", reverse ? 1 : 0}});
  if (exclusive) y = reverse ? c.slice(y, axis, 1, size + DimExpr(1)) : c.slice(y, axis, 0, size);
  return {c.cast(y, dtype)};
}

// Of equal elements ONNX takes the one of the lower index first: a stable sort.
Values import_top_k(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t axis = c.axis_attr("axis", -1, x->rank());
  const DimExpr k = c.opset() >= 10 ? c.content_sizes(1).at(0) : DimExpr(c.integer("k"));
  const bool largest = c.flag("largest", true);
  if (!c.sizes().at_most(k, x->dims.at(static_cast<size_t>(axis))))
    c.refuse(str("k must be at most ", x->dims.at(static_cast<size_t>(axis)), ", but found ", k));
  return c.emit_all(
      "TopK", {x},
      {{"k", k}, {"axis", axis}, {"largest", largest ? 1 : 0}, {"sorted", 1}, {"stable", 1}});
}

REGISTER_ONNX({{"ReduceSum", 1, import_reduce<"ReduceSum">, known_reduce},
               {"ReduceProd", 1, import_reduce<"ReduceProd">, known_reduce},
               {"ReduceMax", 1, import_reduce<"ReduceMax">, known_reduce},
               {"ReduceMin", 1, import_reduce<"ReduceMin">, known_reduce},
               {"ReduceMean", 1, import_reduce<"ReduceMean">},
               {"ReduceL1", 1, import_reduce_l1},
               {"ReduceL2", 1, import_reduce_l2},
               {"ReduceSumSquare", 1, import_reduce_sum_square},
               {"ReduceLogSum", 1, import_reduce_log_sum},
               {"ReduceLogSumExp", 1, import_reduce_log_sum_exp},
               {"ArgMax", 1, import_arg},
               {"ArgMin", 1, import_arg},
               {"CumSum", 11, import_cumsum},
               {"TopK", 1, import_top_k}});

}  // namespace
}  // namespace ortmodule
