// y = sum, mean, max, min or product of x over `axes` (all if empty)

#include <algorithm>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

Dims kept_dims(const GradContext& c) {
  Dims dims = c.x().dims();
  for (int64_t axis : reduced_axes(c.attrs(), dims.size())) dims[static_cast<size_t>(axis)] = 1;
  return dims;
}

// Restores the reduced dimensions of `value` as size 1.
Handle keep(GradContext& c, Handle value) { return c.reshape(value, kept_dims(c)); }

Handle spread(GradContext& c, Handle value) {
  const Dims& dims = c.x().dims();
  return value.dims() == dims ? value : c.emit("Expand", {value}, {{"shape", dims}});
}

Grads sum_grad(GradContext& c) { return {spread(c, keep(c, c.dy()))}; }

Grads mean_grad(GradContext& c) {
  DimExpr count = 1;
  for (int64_t axis : reduced_axes(c.attrs(), c.x().dims().size()))
    count = count * c.x().dims()[static_cast<size_t>(axis)];
  return {spread(c, keep(c, c.dy()) / c.size_literal(count, c.dy().dtype()))};
}

// Equal extrema share the gradient evenly, as in torch. If the extremum is NaN, the NaN elements
// share it with max and min; with amax and amin no element does, and all gradients are NaN.
Grads extremum_grad(GradContext& c) {
  const DType dtype = c.dy().dtype();
  const Handle y = keep(c, c.y());
  Handle chosen = c.emit("Equal", {c.x(), y});
  if (c.attrs().flag("finds_nan"))
    chosen =
        c.emit("Or", {chosen, c.emit("And", {c.emit("IsNaN", {c.x()}), c.emit("IsNaN", {y})})});
  const Handle share = c.cast(chosen, dtype);
  const Handle count =
      c.emit("ReduceSum", {share}, {{"axes", c.attrs().dims("axes")}, {"keepdims", 1}});
  return {share * (keep(c, c.dy()) / count)};
}

// --- conversions ------------------------------------------------------------------------------

// The reduction of a scalar is the identity for any dims.
Value* reduce(TorchCall& t, std::string_view op, Value* x, Attrs attrs = {}) {
  if (x->rank() == 0) return t.emit("Identity", {x});
  const std::vector<int64_t> axes = t.axes("dim", x->rank());
  attrs.set("axes", Dims(axes.begin(), axes.end()));
  attrs.set("keepdims", t.flag("keepdim") ? 1 : 0);
  return t.emit(op, {x}, std::move(attrs));
}

// sum and mean cast to the result type first: int64 for bool and integers.
template <OpName op>
Values convert_reduce(TorchCall& t) {
  require_real(t);
  return {reduce(t, op.text, t.operand("self", t.output().dtype))};
}

template <OpName op, bool finds_nan>
Values convert_extremum(TorchCall& t) {
  require_real(t);
  if (t.output().dtype == DType::Bool) t.refuse("an extremum of bools has no op");
  return {reduce(t, op.text, t.tensor("self"), finds_nan ? Attrs{{"finds_nan", 1}} : Attrs())};
}

// any and all are extrema of bytes; those of no elements are 0 and 255.
template <OpName op>
Values convert_quantifier(TorchCall& t) {
  Value* bits = t.cast(t.operand("self", DType::Bool), DType::UInt8);
  return {t.cast(reduce(t, op.text, bits), t.output().dtype)};
}

// ONNX's reductions do not support small integers.
void export_reduce(const OnnxRuleContext& c) {
  const Dims& axes = c.attrs().dims("axes");
  const OnnxAttrs attrs = {{"keepdims", c.attrs().integer("keepdims", 1)}};
  std::vector<std::string> inputs{c.in(0)};
  if (!axes.empty()) inputs.push_back(c.b.sizes(axes));
  const DType dtype = c.dtype();
  const bool small = size_of(dtype) < 4 && !is_floating(dtype);
  const bool extremum = c.node.op == "ReduceMax" || c.node.op == "ReduceMin";
  if (!small || (extremum && dtype != DType::Int16)) return c.set(0, c.node.op, inputs, attrs);
  inputs[0] = c.cast(inputs[0], DType::Int32);
  c.set(0, "Cast", {c.op(c.node.op, inputs, attrs)}, {{"to", c.node.output()->dtype}});
}

// One pixel or one channel is left of each channels-last image, which its kernels read as it is.
bool reduces_pixels_or_channels(const Node& node) {
  const size_t rank = node.input(0)->rank();
  const std::vector<int64_t> axes = reduced_axes(node.attrs, rank);
  const auto pixels = std::ranges::count_if(axes, [](int64_t axis) { return axis >= 2; });
  return std::ranges::binary_search(axes, 1) || static_cast<size_t>(pixels) + 2 == rank;
}

OpDef reduction(std::string_view name, GradFn grad, std::vector<TorchRow> rows) {
  return {.name = name,
          .inputs = {"x"},
          .outputs = {"y"},
          .attrs = {{"axes", Dims()}, {"keepdims", 1}},
          .kind = OpKind::Reduction,
          .infer = infer_reduce,
          .keeps_channels_last = reduces_pixels_or_channels,
          .grad = grad,
          .onnx = {export_reduce},
          .from_torch = std::move(rows)};
}

std::vector<OpDef> reductions() {
  return {
      reduction("ReduceSum", sum_grad,
                {{"aten.sum.default", convert_reduce<"ReduceSum">},
                 {"aten.sum.dim_IntList", convert_reduce<"ReduceSum">}}),
      reduction("ReduceMean", mean_grad,
                {{"aten.mean.default", convert_reduce<"ReduceMean">},
                 {"aten.mean.dim", convert_reduce<"ReduceMean">}}),
      reduction("ReduceMax", extremum_grad,
                {{"aten.amax.default", convert_extremum<"ReduceMax", false>},
                 {"aten.max.default", convert_extremum<"ReduceMax", true>},
                 {"aten.any.default", convert_quantifier<"ReduceMax">},
                 {"aten.any.dim", convert_quantifier<"ReduceMax">}}),
      reduction("ReduceMin", extremum_grad,
                {{"aten.amin.default", convert_extremum<"ReduceMin", false>},
                 {"aten.min.default", convert_extremum<"ReduceMin", true>},
                 {"aten.all.default", convert_quantifier<"ReduceMin">},
                 {"aten.all.dim", convert_quantifier<"ReduceMin">}}),
      reduction("ReduceProd", nullptr, {}),  // no gradient: it must handle zeros specially
  };
}

REGISTER_OPS(reductions());

RowAxes reduce_rows(const RowQuery& query) {
  const std::vector<int64_t> axes = query.node.attrs.integers("axes");  // none: all
  if (query.axis(0) == kWhole || axes.empty()) return std::nullopt;
  int before = 0;
  for (int64_t axis : axes) {
    const int64_t place = axis < 0 ? axis + query.rank(0) : axis;
    if (place == query.axis(0)) return std::nullopt;
    before += place < query.axis(0);
  }
  return std::vector<int>{query.axis(0) - (query.node.attrs.flag("keepdims") ? 0 : before)};
}
REGISTER_ROW_AXES(reduce_rows, "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd");

}  // namespace
}  // namespace ortmodule
