// y = index of the largest (ArgMax) or smallest (ArgMin) element along `axis`, the first of equal
// ones

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_arg(InferContext& c) {
  Dims dims = c.input(0).dims;
  const int64_t axis = c.axis("axis", dims.size());
  if (c.attrs().flag("keepdims"))
    dims[static_cast<size_t>(axis)] = 1;
  else
    dims.erase(dims.begin() + axis);
  c.set(0, DType::Int64, std::move(dims));
}

// Without a dim, the index into the flattened tensor.
template <OpName op>
Values convert_arg(TorchCall& t) {
  require_real(t);
  Value* x = t.tensor("self");
  if (t.is_none("dim") || x->rank() == 0) {
    Value* flat = t.reshape(x, {product(x->dims)});
    Value* index = t.emit(op.text, {flat}, {{"axis", 0}, {"keepdims", 0}});
    return {t.reshape(index, t.output().dims)};
  }
  return {t.emit(op.text, {x},
                 {{"axis", t.axis("dim", x->rank())}, {"keepdims", t.flag("keepdim") ? 1 : 0}})};
}

// max(dim) and min(dim): gathers the value at the index, so that only this element gets a gradient.
template <OpName op>
Values convert_with_values(TorchCall& t) {
  require_real(t);
  Value* x = t.tensor("self");
  if (x->rank() == 0) t.refuse("a scalar has no axis");
  const int64_t axis = t.axis("dim", x->rank());
  Value* index = t.emit(op.text, {x}, {{"axis", axis}, {"keepdims", 1}});
  Value* value = t.emit("GatherElements", {x, index}, {{"axis", axis}});
  if (t.flag("keepdim")) return {value, index};
  const Attrs axes = {{"axes", Dims{axis}}};
  return {t.emit("Squeeze", {value}, axes), t.emit("Squeeze", {index}, axes)};
}

OpDef arg_reduction(std::string_view name, std::vector<TorchRow> rows) {
  return {.name = name,
          .inputs = {"x"},
          .outputs = {"y"},
          .attrs = {{"axis", 0}, {"keepdims", 1}},
          .kind = OpKind::Reduction,
          .infer = infer_arg,
          .non_differentiable = {0},
          .onnx = {export_directly, {"axis", "keepdims"}},
          .from_torch = std::move(rows)};
}

std::vector<OpDef> arg_reductions() {
  return {arg_reduction("ArgMax", {{"aten.argmax.default", convert_arg<"ArgMax">},
                                   {"aten.max.dim", convert_with_values<"ArgMax">}}),
          arg_reduction("ArgMin", {{"aten.argmin.default", convert_arg<"ArgMin">},
                                   {"aten.min.dim", convert_with_values<"ArgMin">}})};
}

REGISTER_OPS(arg_reductions());

RowAxes arg_rows(const RowQuery& query) {
  const int axis = query.axis(0), reduced = query.attr_axis();
  if (axis == kWhole || axis == reduced) return std::nullopt;
  return std::vector<int>{axis - (!query.node.attrs.flag("keepdims") && reduced < axis ? 1 : 0)};
}
std::optional<RowNumbers> arg_numbers(const RowQuery& query) {
  if (query.numbers[0].name_rows()) return std::nullopt;
  return RowNumbers{0, 0, query.each(query.dims(0)[static_cast<size_t>(query.attr_axis())])};
}
REGISTER_ROW_AXES(arg_rows, "ArgMax", "ArgMin");
REGISTER_ROW_NUMBERS(arg_numbers, "ArgMax", "ArgMin");

}  // namespace
}  // namespace ortmodule
