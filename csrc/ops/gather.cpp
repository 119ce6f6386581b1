// y = data[..., indices, ...] along `axis`; its gradient adds rows back, in a fixed order, to zero
// or to `sum`

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_gather(InferContext& c) {
  const Value& data = c.input(0);
  const Value& indices = c.input(1);
  const int64_t axis = c.axis("axis", data.rank());
  Dims dims(data.dims.begin(), data.dims.begin() + axis);
  dims.insert(dims.end(), indices.dims.begin(), indices.dims.end());
  dims.insert(dims.end(), data.dims.begin() + axis + 1, data.dims.end());
  c.set(0, data.dtype, std::move(dims));
}

void infer_gather_grad(InferContext& c) {
  const Value& dy = c.input(0);
  const Value& indices = c.input(1);
  if (dy.rank() < indices.rank()) c.fail("dy must have the dims of indices");
  const int64_t axis = c.axis("axis", dy.rank() - indices.rank() + 1);
  Dims dims(dy.dims.begin(), dy.dims.begin() + axis);
  dims.push_back(c.attrs().dim("size"));
  dims.insert(dims.end(), dy.dims.begin() + axis + static_cast<int64_t>(indices.rank()),
              dy.dims.end());
  c.set(0, dy.dtype, std::move(dims));
}

Grads gather_grad(GradContext& c) {
  const size_t rank = c.x(0).dims().size();
  int64_t axis = c.attrs().integer("axis");
  if (axis < 0) axis += static_cast<int64_t>(rank);
  return {c.emit("GatherGrad", {c.dy(), c.x(1)},
                 {{"axis", axis},
                  {"size", c.x(0).dims()[static_cast<size_t>(axis)]},
                  {"padding_idx", c.attrs().integer("padding_idx")}})};
}

// --- conversions ------------------------------------------------------------------------------

bool is_index(DType dtype) { return dtype == DType::Int64 || dtype == DType::Int32; }

Values gathered(TorchCall& t, Value* data, Value* indices, int64_t axis, int64_t padding = -1) {
  if (!is_index(indices->dtype)) t.refuse("indices must be int64 or int32");
  if (data->rank() == 0) t.refuse("a scalar has no rows");
  return {t.emit("Gather", {data, indices}, {{"axis", axis}, {"padding_idx", padding}})};
}

Values convert_embedding(TorchCall& t) {
  if (t.flag("scale_grad_by_freq")) t.refuse("scale_grad_by_freq has no op");
  if (t.flag("sparse")) t.refuse("sparse gradients have no op");
  return gathered(t, t.tensor("weight"), t.tensor("indices"), 0, t.integer_or("padding_idx", -1));
}

Values convert_index_select(TorchCall& t) {
  Value* data = t.tensor("self");
  return gathered(t, data, t.tensor("index"), t.axis("dim", data->rank()));
}

// Indices of several neighbouring dimensions as one index into the merged dimension.
Value* merged_index(TorchCall& t, const Values& indices, const Dims& dims, size_t first) {
  Value* flat = nullptr;
  for (size_t i = first; i < first + indices.size(); ++i) {
    Value* index = t.cast(indices[i - first], DType::Int64);
    Value* size = t.size_literal(dims[i], DType::Int64);
    Value* negative = t.emit("Less", {index, t.literal(0.0, DType::Int64)});
    index = t.emit("Where", {negative, t.emit("Add", {index, size}), index});
    flat = flat ? t.emit("Add", {t.emit("Mul", {flat, size}), index}) : index;
  }
  return flat;
}

// x[:, i, j]: tensors of integers for neighbouring dimensions.
Values convert_index(TorchCall& t) {
  Value* x = t.tensor("self");
  const Values given = t.tensors("indices");
  Values indices;
  size_t first = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i]) continue;
    if (!is_index(given[i]->dtype)) t.refuse("indices must be int64 or int32");
    if (indices.empty()) first = i;
    if (i != first + indices.size()) t.refuse("indexed dimensions must be neighbours");
    indices.push_back(given[i]);
  }
  if (indices.empty()) t.refuse("there is no index tensor");
  const auto axis = static_cast<int64_t>(first);
  if (indices.size() == 1) return gathered(t, x, indices[0], axis);
  Dims merged(x->dims.begin(), x->dims.begin() + axis);
  DimExpr size = 1;
  for (size_t i = first; i < first + indices.size(); ++i) size = size * x->dims[i];
  merged.push_back(size);
  merged.insert(merged.end(), x->dims.begin() + axis + static_cast<int64_t>(indices.size()),
                x->dims.end());
  Value* index = merged_index(t, indices, x->dims, first);
  return gathered(t, t.reshape(x, merged), index, axis);
}

// padding_idx means something to the gradient only: rows of that index get none.
REGISTER_OP(Gather, {.inputs = {"data", "indices"},
                     .outputs = {"y"},
                     .attrs = {{"axis", 0}, {"padding_idx", -1}},
                     .kind = OpKind::Data,
                     .infer = infer_gather,
                     .grad = gather_grad,
                     .non_differentiable = {1},
                     .from_torch = {{"aten.embedding.default", convert_embedding},
                                    {"aten.index_select.default", convert_index_select},
                                    {"aten.index.Tensor", convert_index}}});

REGISTER_OP(GatherGrad, {.domain = "com.microsoft",
                         .inputs = {"dy", "indices", "sum?"},
                         .outputs = {"ddata"},
                         .attrs = {{"axis", 0}, {"padding_idx", -1}},
                         .kind = OpKind::Data,
                         .infer = infer_gather_grad});

}  // namespace
}  // namespace ortmodule
