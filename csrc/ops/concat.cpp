// y = concatenation of xs along `axis`; the gradient is Split

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_concat(InferContext& c) {
  Dims dims = c.input(0).dims;
  const auto axis = static_cast<size_t>(c.axis("axis", dims.size()));
  for (size_t i = 1; i < c.input_count(); ++i) {
    const Value& x = c.input(i);
    Dims other = x.dims;
    if (other.size() == dims.size()) other[axis] = dims[axis];
    if (!may_equal(other, dims) || x.dtype != c.input(0).dtype)
      c.fail(str("operands must agree except along axis ", axis, ", but found ",
                 name_of(c.input(0).dtype), dims_text(c.input(0).dims), " and ", name_of(x.dtype),
                 dims_text(x.dims)));
    dims[axis] = dims[axis] + x.dims[axis];
  }
  c.set(0, c.input(0).dtype, std::move(dims));
}

Grads concat_grad(GradContext& c) {
  const size_t rank = c.y().dims().size();
  const int64_t given = c.attrs().integer("axis");
  const int64_t axis = given < 0 ? given + static_cast<int64_t>(rank) : given;
  Dims sizes;
  for (size_t i = 0; i < c.input_count(); ++i)
    sizes.push_back(c.x(i).dims()[static_cast<size_t>(axis)]);
  return c.emit_all("Split", {c.dy()}, {{"axis", axis}, {"sizes", sizes}}, sizes.size());
}

Values convert_cat(TorchCall& t) {
  const Dims& dims = t.output().dims;
  Values parts;
  for (Value* x : t.tensors("tensors")) {
    const bool legacy_empty = x->rank() == 1 && dims.size() != 1 && x->dims[0] == DimExpr(0);
    if (!legacy_empty) parts.push_back(t.cast(x, t.output().dtype));
  }
  if (parts.empty()) t.refuse("there is nothing to concatenate");
  if (parts.size() == 1) return {t.emit("Identity", parts)};
  return {t.emit("Concat", parts, {{"axis", t.axis("dim", dims.size())}})};
}

Values convert_stack(TorchCall& t) {
  const int64_t axis = t.axis("dim", t.output().dims.size());
  Values parts;
  for (Value* x : t.tensors("tensors"))
    parts.push_back(t.emit("Unsqueeze", {t.cast(x, t.output().dtype)}, {{"axes", Dims{axis}}}));
  if (parts.size() == 1) return parts;
  return {t.emit("Concat", parts, {{"axis", axis}})};
}

void export_concat(const OnnxRuleContext& c) { c.set(0, "Concat", c.ins(), c.pick({"axis"})); }

REGISTER_OP(Concat, {.inputs = {"xs*"},
                     .outputs = {"y"},
                     .kind = OpKind::Data,
                     .infer = infer_concat,
                     .keeps_channels_last = always,
                     .grad = concat_grad,
                     .onnx = {export_concat},
                     .from_torch = {{"aten.cat.default", convert_cat},
                                    {"aten.stack.default", convert_stack}}});

RowAxes concat_rows(const RowQuery& query) {
  const int axis = query.axis(0);
  for (size_t i = 0; i < query.node.inputs().size(); ++i)
    if (query.axis(i) != axis) return std::nullopt;
  if (axis == kWhole || axis == query.attr_axis()) return std::nullopt;
  return std::vector<int>{axis};
}
REGISTER_ROW_AXES(concat_rows, "Concat");

}  // namespace
}  // namespace ortmodule
