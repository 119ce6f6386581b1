// y[i] = start + i * delta, up to but excluding limit; the attributes are sizes or numbers

#include <cmath>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// An expression for integers, which may be symbolic; a constant for floats.
DimExpr range_length(InferContext& c) {
  const Attrs& attrs = c.attrs();
  auto is_size = [&](std::string_view name) {
    return std::holds_alternative<DimExpr>(*attrs.find(name));
  };
  if (is_size("start") && is_size("limit") && is_size("delta")) {
    if (!attrs.dim("delta").is_constant()) c.fail("delta must be known at capture");
    const int64_t delta = attrs.integer("delta");
    if (delta == 0) c.fail("delta must not be 0");
    const DimExpr way = attrs.dim("limit") - attrs.dim("start");
    if (delta == 1) return way;
    const DimExpr ahead = delta > 0 ? way : DimExpr(0) - way;
    const int64_t pace = std::abs(delta);
    return DimExpr::floor_div(ahead + DimExpr(pace - 1), pace);
  }
  const double delta = attrs.number("delta");
  if (delta == 0) c.fail("delta must not be 0");
  const double length = std::ceil((attrs.number("limit") - attrs.number("start")) / delta);
  // Also if it is not a number. Plans refuse what memory cannot hold.
  if (!(length <= 0x1p53))
    c.fail(str("a range must have at most 2^53 elements, but found ", length));
  return DimExpr(static_cast<int64_t>(std::max(length, 0.0)));
}

void infer_range(InferContext& c) {
  const DimExpr length = range_length(c);
  if (length.is_constant() && length.value() < 0)
    c.fail(str("limit must not be before start, but found a length of ", length));
  c.set(0, c.attrs().dtype("dtype"), {length});
}

Attr bound(const TorchCall& t, std::string_view name, int64_t absent) {
  if (t.is_none(name)) return DimExpr(absent);
  if (t.is_float_number(name)) return t.number(name);
  return t.dim(name);
}

Values convert_arange(TorchCall& t) {
  require_real(t);
  Value* y = t.emit("Range", {},
                    {{"start", bound(t, "start", 0)},
                     {"limit", bound(t, "end", 0)},
                     {"delta", bound(t, "step", 1)},
                     {"dtype", t.output().dtype}});
  const DimExpr& expected = t.output().dims.at(0);
  if (y->dims[0].is_constant() && expected.is_constant() && !(y->dims[0] == expected))
    t.refuse(str("the length should be ", expected, ", but found ", y->dims[0]));
  return {y};
}

// ONNX's Range supports only float32, float64, int16, int32 and int64.
void export_range(const OnnxRuleContext& c) {
  const DType dtype = c.attrs().dtype("dtype");
  const bool known = size_of(dtype) >= 4 || dtype == DType::Int16;
  const DType inside = known ? dtype : compute_dtype(is_floating(dtype) ? dtype : DType::Int32);
  auto bound = [&](std::string_view name) {
    const auto* dim = std::get_if<DimExpr>(c.attrs().find(name));
    if (!dim || dim->is_constant()) return c.number(c.attrs().number(name), inside);
    const std::string size = c.b.size_scalar(*dim);
    return inside == DType::Int64 ? size : c.cast(size, inside);
  };
  const std::vector<std::string> bounds{bound("start"), bound("limit"), bound("delta")};
  if (known) return c.set(0, "Range", bounds);
  c.set(0, "Cast", {c.op("Range", bounds)}, {{"to", dtype}});
}

REGISTER_OP(Range, {.inputs = {},
                    .outputs = {"y"},
                    .kind = OpKind::Data,
                    .infer = infer_range,
                    .onnx = {export_range},
                    .from_torch = {{"aten.arange.default", convert_arange},
                                   {"aten.arange.start", convert_arange},
                                   {"aten.arange.start_step", convert_arange}}});

bool counts_from_zero(const RowQuery& query) {
  const auto* start = std::get_if<DimExpr>(query.node.attrs.find("start"));
  const auto* delta = std::get_if<DimExpr>(query.node.attrs.find("delta"));
  return start && *start == DimExpr(0) && delta && *delta == DimExpr(1);
}

// 0, 1, .. up to a multiple of the number of rows: each row has as many.
RowAxes range_rows(const RowQuery& query) {
  if (!counts_from_zero(query) || !query.scales(query.node.output()->dims[0])) return std::nullopt;
  return std::vector<int>{0};
}
std::optional<RowNumbers> range_numbers(const RowQuery& query) {
  if (!counts_from_zero(query)) return RowNumbers{};
  const DimExpr& length = query.node.output()->dims[0];
  return RowNumbers{query.scales(length) ? query.each(length) : 0, 0, query.each(length)};
}
REGISTER_ROW_AXES(range_rows, "Range");
REGISTER_ROW_NUMBERS(range_numbers, "Range");

}  // namespace
}  // namespace ortmodule
