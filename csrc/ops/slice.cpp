// y = x[..., start:end:step, ...] along `axis`, step > 0; SliceGrad scatters dy into zeros

#include <algorithm>
#include <limits>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

DimExpr slice_length(const DimExpr& start, const DimExpr& end, int64_t step) {
  if (step == 1) return end - start;
  return DimExpr::floor_div(end - start + DimExpr(step - 1), step);
}

void infer_slice(InferContext& c) {
  const Value& x = c.input(0);
  const int64_t step = c.attrs().integer("step");
  if (step <= 0) c.fail(str("step must be positive, but found ", step));
  Dims dims = x.dims;
  DimExpr& dim = dims[static_cast<size_t>(c.axis("axis", x.rank()))];
  const DimExpr length = slice_length(c.attrs().dim("start"), c.attrs().dim("end"), step);
  if (length.is_constant() && length.value() < 0)
    c.fail(str("end must not be before start, but found ", c.attrs().dim("start"), " and ",
               c.attrs().dim("end")));
  dim = length;
  c.set(0, x.dtype, std::move(dims));
}

std::optional<Layout> slice_view(const Layout& in, const Attrs& attrs, const Sizes& out_sizes,
                                 size_t) {
  const int64_t given = attrs.integer("axis");
  const auto axis =
      static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(in.sizes.size()) : given);
  Layout out{out_sizes, in.strides, in.offset};
  // Keep the offset of an empty slice within the storage.
  const int64_t start = attrs.integer("start"), step = attrs.integer("step");
  if (element_count(out_sizes) > 0) {
    const int64_t last = start + (out_sizes[axis] - 1) * step;
    ORTM_CHECK(start >= 0 && last < in.sizes[axis], "[plan] a slice must be within a dimension of ",
               in.sizes[axis], " elements, but found ", start, " to ", last);
    out.offset += start * in.strides[axis];
  }
  out.strides[axis] = in.strides[axis] * step;
  return out;
}

void infer_slice_grad(InferContext& c) { c.set(0, c.input(0).dtype, c.attrs().dims("shape")); }

Grads slice_grad(GradContext& c) {
  Attrs attrs = c.attrs();
  attrs.set("shape", c.x().dims());
  return {c.emit("SliceGrad", {c.dy()}, std::move(attrs))};
}

Grads slice_grad_grad(GradContext& c) {
  Attrs attrs = c.attrs();
  attrs.erase("shape");
  return {c.emit("Slice", {c.dy()}, std::move(attrs))};
}

// --- conversions ------------------------------------------------------------------------------

Value* slice(TorchCall& t, Value* x, int64_t axis, const DimExpr& start, const DimExpr& end,
             int64_t step = 1) {
  return t.emit("Slice", {x}, {{"axis", axis}, {"start", start}, {"end", end}, {"step", step}});
}

/// A non-negative bound of a slice, if its sign is certain.
struct Bound {
  DimExpr at;
  bool certain = true;
};

Bound from_front(const TorchCall& t, const DimExpr& given, const DimExpr& size) {
  const ValueRange values = t.range_of(given);
  if (values.least >= 0) return {given};
  if (values.greatest < 0) return {size + given};
  return {given, false};
}

// A bound with torch's semantics: from the end if negative, clamped where that can be decided.
Bound bound(const TorchCall& t, std::string_view name, const DimExpr& size, const DimExpr& absent) {
  if (t.is_none(name)) return {absent};
  const DimExpr given = t.dim(name);
  if (!given.is_constant()) return from_front(t, given, size);
  const int64_t value = given.value();
  if (value >= std::numeric_limits<int64_t>::max() / 2) return {size};
  if (!size.is_constant()) return {value < 0 ? size + given : given};
  return {std::clamp(value < 0 ? value + size.value() : value, int64_t{0}, size.value())};
}

// Decides the unknown sign of a start from the traced length, if only one sign matches it.
DimExpr start_by_length(const TorchCall& t, const Bound& start, const Bound& end,
                        const DimExpr& size, const DimExpr& length, int64_t step) {
  if (start.certain) return start.at;
  const bool front = end.certain && slice_length(start.at, end.at, step) == length;
  const bool back = end.certain && slice_length(size + start.at, end.at, step) == length;
  if (front == back) t.refuse("the sign of a slice's start must be known");
  return front ? start.at : size + start.at;
}

// The tracer knows the length, so for a symbolic size only the start must be resolved: it counts
// from the front or, if the length matches, from the end.
Values convert_slice(TorchCall& t) {
  Value* x = t.tensor("self");
  if (x->rank() == 0) t.refuse("a scalar has nothing to slice");
  const int64_t axis = t.axis("dim", x->rank());
  const DimExpr& size = x->dims[static_cast<size_t>(axis)];
  const DimExpr length = t.output().dims.at(static_cast<size_t>(axis));
  const int64_t step = t.integer_or("step", 1);
  const Bound end = bound(t, "end", size, size);
  if (length == DimExpr(0)) return {slice(t, x, axis, 0, 0)};
  if (length == size && step == 1) return {t.emit("Identity", {x})};
  const DimExpr start = start_by_length(t, bound(t, "start", size, 0), end, size, length, step);
  if (end.certain && slice_length(start, end.at, step) == length)
    return {slice(t, x, axis, start, end.at, step)};
  const bool from_back = !t.is_none("start") && !(start == t.dim("start")) && !size.is_constant();
  if (from_back) t.refuse("the start of a slice of a symbolic size must be known");
  const DimExpr last = start + (length - DimExpr(1)) * DimExpr(step);
  return {slice(t, x, axis, start, last + DimExpr(1), step)};
}

DimExpr known_index(const TorchCall& t, const DimExpr& size) {
  const Bound index = from_front(t, t.dim("index"), size);
  if (!index.certain) t.refuse("the sign of an index must be known");
  return index.at;
}

// x[..., index, ...] as a slice of length 1 with its dimension squeezed
Values convert_select(TorchCall& t) {
  Value* x = t.tensor("self");
  const int64_t axis = t.axis("dim", x->rank());
  const DimExpr index = known_index(t, x->dims[static_cast<size_t>(axis)]);
  Value* row = slice(t, x, axis, index, index + DimExpr(1));
  return {t.emit("Squeeze", {row}, {{"axes", Dims{axis}}})};
}

Value* joined(TorchCall& t, const Values& parts, int64_t axis) {
  return parts.size() == 1 ? parts[0] : t.emit("Concat", parts, {{"axis", axis}});
}

// self with [start, end) of an axis replaced by src
Value* replaced(TorchCall& t, Value* self, Value* src, int64_t axis, const DimExpr& start,
                const DimExpr& end) {
  const DimExpr& size = self->dims[static_cast<size_t>(axis)];
  Values parts;
  if (!(start == DimExpr(0))) parts.push_back(slice(t, self, axis, 0, start));
  parts.push_back(t.cast(src, self->dtype));
  if (!(end == size)) parts.push_back(slice(t, self, axis, end, size));
  return joined(t, parts, axis);
}

Values convert_slice_scatter(TorchCall& t) {
  Value* self = t.tensor("self");
  Value* src = t.tensor("src");
  const int64_t axis = t.axis("dim", self->rank());
  const DimExpr& size = self->dims[static_cast<size_t>(axis)];
  if (t.integer_or("step", 1) != 1) t.refuse("step must be 1");
  const Bound start = bound(t, "start", size, 0);
  const Bound end = bound(t, "end", size, size);
  const DimExpr& length = src->dims.at(static_cast<size_t>(axis));
  if (!start.certain || !end.certain || !(end.at - start.at == length))
    t.refuse("the position of src must be known");
  return {replaced(t, self, src, axis, start.at, end.at)};
}

Values convert_select_scatter(TorchCall& t) {
  Value* self = t.tensor("self");
  const int64_t axis = t.axis("dim", self->rank());
  const DimExpr index = known_index(t, self->dims[static_cast<size_t>(axis)]);
  Value* row = t.emit("Unsqueeze", {t.tensor("src")}, {{"axes", Dims{axis}}});
  return {replaced(t, self, row, axis, index, index + DimExpr(1))};
}

// Concatenates the tail and the head of each rolled axis.
Values convert_roll(TorchCall& t) {
  Value* x = t.tensor("self");
  const Dims shifts = t.dims("shifts");
  const std::vector<int64_t> axes = t.axes("dims", x->rank());
  if (axes.size() != shifts.size()) t.refuse("every shift must name its dimension");
  for (size_t i = 0; i < axes.size(); ++i) {
    const DimExpr size = x->dims[static_cast<size_t>(axes[i])];
    if (size == DimExpr(0)) continue;
    const DimExpr tail = DimExpr::mod(shifts[i], size);
    if (tail == DimExpr(0)) continue;
    x = joined(t, {slice(t, x, axes[i], size - tail, size), slice(t, x, axes[i], 0, size - tail)},
               axes[i]);
  }
  return {x == t.tensor("self") ? t.emit("Identity", {x}) : x};
}

void export_slice(const OnnxRuleContext& c) {
  c.set(0, "Slice",
        {c.in(0), c.b.size(c.attrs().dim("start")), c.b.size(c.attrs().dim("end")),
         c.b.size(c.attrs().dim("axis")), c.b.size(c.attrs().dim("step"))});
}

REGISTER_OP(Slice, {.inputs = {"x"},
                    .outputs = {"y"},
                    .attrs = {{"step", 1}},
                    .kind = OpKind::View,
                    .infer = infer_slice,
                    .view = slice_view,
                    .grad = slice_grad,
                    .onnx = {export_slice},
                    .from_torch = {{"aten.slice.Tensor", convert_slice},
                                   {"aten.select.int", convert_select},
                                   {"aten.slice_scatter.default", convert_slice_scatter},
                                   {"aten.select_scatter.default", convert_select_scatter},
                                   {"aten.roll.default", convert_roll}}});

REGISTER_OP(SliceGrad, {.domain = "com.microsoft",
                        .inputs = {"dy"},
                        .outputs = {"dx"},
                        .attrs = {{"step", 1}},
                        .kind = OpKind::Data,
                        .infer = infer_slice_grad,
                        .grad = slice_grad_grad});

REGISTER_ROW_AXES(rows_beside_axis, "Slice");
REGISTER_ROW_NUMBERS(numbers_of_operand, "Slice");

}  // namespace
}  // namespace ortmodule
