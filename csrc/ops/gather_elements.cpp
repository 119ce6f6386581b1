// GatherElements: y[i, j] = data[indices[i, j], j] for axis 0, and likewise for other axes.
// ScatterElements writes updates to these elements of data; by `reduction` "add", "mul", "min" or
// "max" it combines them with what is there.
// With from_front, a negative index is out of range, as in torch; else it counts from the end, as
// in ONNX.

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// Indices are at most as large as data, but along the axis.
void check_indices(InferContext& c, const Value& data, const Value& indices) {
  const auto axis = static_cast<size_t>(c.axis("axis", data.rank()));
  if (indices.rank() != data.rank())
    c.fail(str("data and indices must have the same rank, but found ", dims_text(data.dims),
               " and ", dims_text(indices.dims)));
  for (size_t d = 0; d < data.rank(); ++d) {
    const DimExpr excess = indices.dims[d] - data.dims[d];
    if (d != axis && excess.is_constant() && excess.value() > 0)
      c.fail(str("indices must be within data but along axis ", axis, ", but found ",
                 dims_text(indices.dims), " for ", dims_text(data.dims)));
  }
}

void infer_gather_elements(InferContext& c) {
  const Value& data = c.input(0);
  const Value& indices = c.input(1);
  check_indices(c, data, indices);
  c.set(0, data.dtype, indices.dims);
}

void infer_scatter_elements(InferContext& c) {
  const Value& data = c.input(0);
  const Value& updates = c.input(2);
  check_indices(c, data, c.input(1));
  if (!may_equal(updates.dims, c.input(1).dims))
    c.fail(str("updates and indices must have the same shape, but found ", dims_text(updates.dims),
               " and ", dims_text(c.input(1).dims)));
  if (updates.dtype != data.dtype)
    c.fail(str("data and updates must have the same type, but found ", name_of(data.dtype), " and ",
               name_of(updates.dtype)));
  infer_same_as_input(c);
}

Grads gather_elements_grad(GradContext& c) {
  const Handle zeros = c.full(0.0, c.x(0).dims(), c.dy().dtype());
  return {c.emit("ScatterElements", {zeros, c.x(1), c.dy()},
                 {{"axis", *c.attrs().find("axis")}, {"reduction", "add"}})};
}

// If the index is a row index expanded to elements, as index_put makes it, returns the row index,
// so that the gradient can gather rows.
Value* row_index(const GradContext& c, size_t axis) {
  const Node* expand = c.x(1).value()->producer();
  if (!expand || expand->op != "Expand") return nullptr;
  const Dims &dims = expand->input(0)->dims, &data = c.x(0).dims(), &updates = c.x(2).dims();
  if (dims.size() != data.size() || dims[axis] != updates[axis]) return nullptr;
  for (size_t d = 0; d < dims.size(); ++d)
    if (d != axis && (dims[d] != DimExpr(1) || updates[d] != data[d])) return nullptr;
  return expand->input(0);
}

Handle updates_grad(GradContext& c) {
  const size_t rank = c.x(0).dims().size();
  const int64_t given = c.attrs().integer("axis");
  const size_t axis = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(rank) : given);
  const Attrs attrs = {{"axis", *c.attrs().find("axis")}};
  Value* rows = row_index(c, axis);
  if (!rows) return c.emit("GatherElements", {c.dy(), c.x(1)}, attrs);
  const Handle index(&c.graph(), rows);
  return c.emit("Gather", {c.dy(), c.reshape(index, {rows->dims[axis]})}, attrs);
}

// As in torch, all updates of an element that is written several times get its gradient.
Grads scatter_elements_grad(GradContext& c) {
  const std::string reduction = c.attrs().string("reduction", "none");
  ORTM_CHECK(reduction == "none" || reduction == "add",
             "[ScatterElements] only the reductions none and add have a gradient, but found ",
             reduction);
  Grads grads(3);
  grads[0] = c.dy();
  if (reduction == "none" && c.needs(0)) {
    const Handle zeros = c.full(0.0, c.x(2).dims(), c.dy().dtype());
    grads[0] = c.emit("ScatterElements", {c.dy(), c.x(1), zeros},
                      {{"axis", *c.attrs().find("axis")}, {"reduction", "none"}});
  }
  if (c.needs(2)) grads[2] = updates_grad(c);
  return grads;
}

Values convert_gather(TorchCall& t) {
  Value* data = t.tensor("self");
  Value* indices = t.tensor("index");
  if (t.flag("sparse_grad")) t.refuse("sparse gradients have no op");
  if (indices->dtype != DType::Int64) t.refuse("indices must be int64");
  if (data->rank() == 0 || data->rank() != indices->rank()) t.refuse("scalars have no elements");
  return {t.emit("GatherElements", {data, indices},
                 {{"axis", t.axis("dim", data->rank())}, {"from_front", 1}})};
}

Values scattered(TorchCall& t, Value* updates, std::string_view reduction) {
  Value* data = t.tensor("self");
  Value* indices = t.tensor("index");
  if (indices->dtype != DType::Int64) t.refuse("indices must be int64");
  if (data->rank() == 0 || data->rank() != indices->rank()) t.refuse("scalars have no elements");
  // torch also allows a larger src, of which it reads a part.
  if (updates->dims != indices->dims) t.refuse("src must have the shape of index");
  return {t.emit("ScatterElements", {data, indices, updates},
                 {{"axis", t.axis("dim", data->rank())},
                  {"reduction", std::string(reduction)},
                  {"from_front", 1}})};
}

Values convert_scatter_add(TorchCall& t) { return scattered(t, t.tensor("src"), "add"); }

Values convert_scatter(TorchCall& t) { return scattered(t, t.tensor("src"), "none"); }

Values convert_scatter_value(TorchCall& t) {
  const Dims& dims = t.tensor("index")->dims;
  return scattered(t, t.full(t.number("value"), dims, t.output().dtype), "none");
}

REGISTER_OP(GatherElements, {.inputs = {"data", "indices"},
                             .outputs = {"y"},
                             .attrs = {{"axis", 0}, {"from_front", 0}},
                             .kind = OpKind::Data,
                             .infer = infer_gather_elements,
                             .grad = gather_elements_grad,
                             .non_differentiable = {1},
                             .onnx = {export_directly, {"axis"}},
                             .from_torch = {{"aten.gather.default", convert_gather}}});

REGISTER_OP(ScatterElements, {.inputs = {"data", "indices", "updates"},
                              .outputs = {"y"},
                              .attrs = {{"axis", 0}, {"reduction", "add"}, {"from_front", 0}},
                              .kind = OpKind::Data,
                              .infer = infer_scatter_elements,
                              .grad = scatter_elements_grad,
                              .non_differentiable = {1},
                              .onnx = {export_directly, {"axis", "reduction"}},
                              .from_torch = {{"aten.scatter_add.default", convert_scatter_add},
                                             {"aten.scatter.src", convert_scatter},
                                             {"aten.scatter.value", convert_scatter_value}}});

RowAxes element_rows(const RowQuery& query) {
  const int axis = query.axis(0);
  for (size_t i = 0; i < query.node.inputs().size(); ++i)
    if (query.axis(i) != axis) return std::nullopt;
  if (axis == kWhole || axis == query.attr_axis()) return std::nullopt;
  return std::vector<int>{axis};
}
REGISTER_ROW_AXES(element_rows, "GatherElements", "ScatterElements");

}  // namespace
}  // namespace ortmodule
