// y = data[..., indices, ...] along `axis`. GatherGrad adds rows, in a deterministic order, to
// zeros or to `sum`; with `sum` it is also index_put with `accumulate`.

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
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

// As index_put, GatherGrad is also a forward op and needs a gradient. Rows of padding_idx did not
// reach its result.
Grads gather_grad_grad(GradContext& c) {
  Grads grads(3);
  const int64_t padding = c.attrs().integer("padding_idx");
  if (c.needs(0)) {
    const Handle indices = c.x(1);
    Handle rows = c.emit("Gather", {c.dy(), indices}, {{"axis", *c.attrs().find("axis")}});
    if (padding >= 0) {
      Dims along = indices.dims();
      const auto axis = static_cast<size_t>(c.attrs().integer("axis"));
      along.insert(along.begin(), axis, DimExpr(1));
      along.resize(rows.dims().size(), DimExpr(1));
      const Handle padded =
          c.emit("Equal", {indices, c.literal(static_cast<double>(padding), indices.dtype())});
      rows = c.emit("Where", {c.reshape(padded, along), c.literal(0.0, rows.dtype()), rows});
    }
    grads[0] = rows;
  }
  if (c.x(2)) grads[2] = c.dy();
  return grads;
}

// --- conversions ------------------------------------------------------------------------------

bool is_index(DType dtype) { return dtype == DType::Int64 || dtype == DType::Int32; }

Values gathered(TorchCall& t, Value* data, Value* indices, Attrs attrs) {
  if (!is_index(indices->dtype)) t.refuse("indices must be int64 or int32");
  if (data->rank() == 0) t.refuse("a scalar has no rows");
  return {t.emit("Gather", {data, indices}, std::move(attrs))};
}

Values convert_embedding(TorchCall& t) {
  if (t.flag("scale_grad_by_freq")) t.refuse("scale_grad_by_freq has no op");
  if (t.flag("sparse")) t.refuse("sparse gradients have no op");
  return gathered(
      t, t.tensor("weight"), t.tensor("indices"),
      {{"axis", 0}, {"padding_idx", t.integer_or("padding_idx", -1)}, {"from_front", 1}});
}

Values convert_index_select(TorchCall& t) {
  Value* data = t.tensor("self");
  Value* index = t.tensor("index");
  if (index->rank() == 0) index = t.reshape(index, {1});  // the dimension stays
  return gathered(t, data, index, {{"axis", t.axis("dim", data->rank())}, {"from_front", 1}});
}

constexpr double kNowhere = -0x1p40;

// Makes a negative index non-negative. An index out of range stays out of range in any sum.
Value* wrapped_index(TorchCall& t, Value* index, const DimExpr& size) {
  index = t.cast(index, DType::Int64);
  Value* zero = t.literal(0.0, DType::Int64);
  Value* count = t.size_literal(size, DType::Int64);
  Value* wrapped =
      t.emit("Where", {t.emit("Less", {index, zero}), t.emit("Add", {index, count}), index});
  Value* inside =
      t.emit("And", {t.emit("GreaterOrEqual", {wrapped, zero}), t.emit("Less", {wrapped, count})});
  return t.emit("Where", {inside, wrapped, t.literal(kNowhere, DType::Int64)});
}

// x[:, i, j]: the dimensions indexed by integer tensors, merged into dimension `axis` of `data`.
struct IndexedDim {
  Value* data;
  Values indices;  // one per dimension of x that was merged
  int64_t axis = 0;
};

IndexedDim indexed_dim(TorchCall& t, Value* x, const Values& given) {
  IndexedDim d{x, {}};
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i]) continue;
    if (!is_index(given[i]->dtype)) t.refuse("indices must be int64 or int32");
    if (d.indices.empty()) d.axis = static_cast<int64_t>(i);
    if (i != static_cast<size_t>(d.axis) + d.indices.size())
      t.refuse("indexed dimensions must be adjacent");
    d.indices.push_back(given[i]);
  }
  if (d.indices.empty()) t.refuse("there is no index tensor");
  if (d.indices.size() == 1) return d;
  const auto first = x->dims.begin() + d.axis,
             last = first + static_cast<int64_t>(d.indices.size());
  Dims merged(x->dims.begin(), first);
  merged.push_back(product(Dims(first, last)));
  merged.insert(merged.end(), last, x->dims.end());
  d.data = t.reshape(x, merged);
  return d;
}

// The non-negative index into the merged dimension.
Value* merged_index(TorchCall& t, const IndexedDim& d, const Dims& dims) {
  Value* flat = nullptr;
  for (size_t i = 0; i < d.indices.size(); ++i) {
    const DimExpr& size = dims[static_cast<size_t>(d.axis) + i];
    Value* index = wrapped_index(t, d.indices[i], size);
    if (flat) flat = t.emit("Mul", {flat, t.size_literal(size, DType::Int64)});
    flat = flat ? t.emit("Add", {flat, index}) : index;
  }
  return flat;
}

// The indexed dimensions of x that Expand repeats, if some but not all are: their positions are
// equal, so that only the shapes of their indices count, and x need not be there as a whole.
std::vector<size_t> repeated_dims(const TorchCall& t, const Value* x) {
  const Node* expand = x->producer();
  if (!expand || expand->op != "Expand" || expand->input(0)->rank() != x->rank()) return {};
  const Dims& from = expand->input(0)->dims;
  const Values given = t.tensors("indices");
  std::vector<size_t> repeated, indexed;
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i]) continue;
    // Of indices that are not adjacent, the result has the dimensions in another place.
    if (!is_index(given[i]->dtype) || (!indexed.empty() && indexed.back() + 1 != i)) return {};
    indexed.push_back(i);
    if (from[i] == DimExpr(1) && !(x->dims[i] == DimExpr(1))) repeated.push_back(i);
  }
  return repeated.size() < indexed.size() ? repeated : std::vector<size_t>();
}

/// x without dimensions that it repeats.
Value* without_repetition(TorchCall& t, Value* x, const std::vector<size_t>& repeated) {
  Dims axes, dims = x->dims;
  for (size_t i : repeated) axes.emplace_back(static_cast<int64_t>(i));
  for (size_t k = repeated.size(); k-- > 0;)
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(repeated[k]));
  Value* once = t.emit("Squeeze", {x->producer()->input(0)}, {{"axes", axes}});
  return once->dims == dims ? once : t.emit("Expand", {once}, {{"shape", dims}});
}

Values convert_index(TorchCall& t) {
  Value* x = t.tensor("self");
  while (x->producer() && x->producer()->op == "Identity") x = x->producer()->input(0);
  const std::vector<size_t> repeated = repeated_dims(t, x);
  Values given = t.tensors("indices");
  Values inside;  // of the indices that are left out, which eager checks, too
  for (size_t k = repeated.size(); k-- > 0;) {
    const size_t i = repeated[k];
    Value* wrapped = wrapped_index(t, given[i], x->dims[i]);
    inside.push_back(t.emit("GreaterOrEqual", {wrapped, t.literal(0.0, DType::Int64)}));
    given.erase(given.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (!repeated.empty()) x = without_repetition(t, x, repeated);
  const IndexedDim d = indexed_dim(t, x, given);
  Value* index = d.indices.size() == 1 ? d.indices[0] : merged_index(t, d, x->dims);
  for (Value* condition : inside)
    index = t.emit("Where",
                   {condition, t.cast(index, DType::Int64), t.literal(kNowhere, DType::Int64)});
  return gathered(t, d.data, index, {{"axis", d.axis}});
}

// x[mask] = value
Value* masked(TorchCall& t, Value* mask) {
  Value *x = t.tensor("self"), *value = t.tensor("values");
  const DimExpr count = product(value->dims);
  if (!count.is_constant() || count.value() != 1) t.refuse("a mask needs a single value");
  if (t.flag("accumulate")) t.refuse("a mask with accumulate has no op");
  Dims spread = mask->dims;
  spread.resize(x->rank(), DimExpr(1));
  return t.emit("Where", {t.reshape(mask, spread), t.reshape(value, {}), x});
}

// x[:, i, j] = values, or += with `accumulate`.
Values convert_index_put(TorchCall& t) {
  Value* x = t.tensor("self");
  if (x->rank() == 0) t.refuse("a scalar has no rows");
  const Values given = t.tensors("indices");
  if (given.size() == 1 && given[0] && given[0]->dtype == DType::Bool) return {masked(t, given[0])};
  const IndexedDim d = indexed_dim(t, x, given);
  Value* index = merged_index(t, d, x->dims);
  const Dims& dims = d.data->dims;
  const auto at = dims.begin() + d.axis;
  Dims put(dims.begin(), at);
  put.insert(put.end(), index->dims.begin(), index->dims.end());
  put.insert(put.end(), at + 1, dims.end());
  Value* updates = t.emit("Expand", {t.tensor("values")}, {{"shape", put}});
  if (t.flag("accumulate")) {
    if (x->dtype == DType::Bool) t.refuse("accumulate of bools has no op");
    Value* y = t.emit("GatherGrad", {updates, index, d.data},
                      {{"axis", d.axis}, {"size", *at}, {"padding_idx", -1}});
    return {t.reshape(y, x->dims)};
  }
  // Expands the index of a row to its elements.
  Dims updated = dims, along(dims.size(), DimExpr(1));
  along[static_cast<size_t>(d.axis)] = updated[static_cast<size_t>(d.axis)] = product(index->dims);
  index = t.emit("Expand", {t.reshape(index, along)}, {{"shape", updated}});
  Value* y = t.emit("ScatterElements", {d.data, index, t.reshape(updates, updated)},
                    {{"axis", d.axis}, {"reduction", "none"}});
  return {t.reshape(y, x->dims)};
}

// padding_idx only affects the gradient: rows of that index get none. With from_front, a negative
// index is out of range, as in torch's embedding.
REGISTER_OP(Gather, {.inputs = {"data", "indices"},
                     .outputs = {"y"},
                     .attrs = {{"axis", 0}, {"padding_idx", -1}, {"from_front", 0}},
                     .kind = OpKind::Data,
                     .infer = infer_gather,
                     .grad = gather_grad,
                     .non_differentiable = {1},
                     .onnx = {export_directly, {"axis"}},
                     .from_torch = {{"aten.embedding.default", convert_embedding},
                                    {"aten.index_select.default", convert_index_select},
                                    {"aten.index.Tensor", convert_index}}});

REGISTER_TORCH({{"aten.index_put.default", convert_index_put}});

REGISTER_OP(GatherGrad, {.domain = "com.microsoft",
                         .inputs = {"dy", "indices", "sum?"},
                         .outputs = {"ddata"},
                         .attrs = {{"axis", 0}, {"padding_idx", -1}},
                         .kind = OpKind::Data,
                         .infer = infer_gather_grad,
                         .grad = gather_grad_grad,
                         .non_differentiable = {1}});

// data[.., indices, ..]: the dimensions of the indices take the place of the axis.
RowAxes gather_rows(const RowQuery& query) {
  const int at = query.attr_axis(), data = query.axis(0), indices = query.axis(1);
  const RowNumbers& named = query.numbers[1];
  if (named.name_rows()) {  // each row reads its own part of that axis
    const int64_t each = data == at ? query.each(query.dims(0)[static_cast<size_t>(at)]) : 0;
    if (named.stride != each || named.begin < 0 || named.end > each) return std::nullopt;
    return std::vector<int>{at + indices};
  }
  if (data == kWhole && indices != kWhole) return std::vector<int>{at + indices};
  if (data == kWhole || indices != kWhole || data == at) return std::nullopt;
  return std::vector<int>{data < at ? data : data + query.rank(1) - 1};
}
// Elements of data that names rows would be those of other rows.
std::optional<RowNumbers> gathered_numbers(const RowQuery& query) {
  if (query.axis(1) != kWhole && query.numbers[0].name_rows()) return std::nullopt;
  return query.numbers[0];
}
REGISTER_ROW_AXES(gather_rows, "Gather");
REGISTER_ROW_NUMBERS(gathered_numbers, "Gather");

}  // namespace
}  // namespace ortmodule
