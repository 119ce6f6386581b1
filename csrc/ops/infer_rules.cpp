#include "ops/infer_rules.h"

#include <algorithm>

#include "base/error.h"

namespace ortmodule {
namespace {

bool is_one(const DimExpr& dim) { return dim.is_constant() && dim.value() == 1; }

Dims broadcast_operands(InferContext& c) {
  Dims dims;
  for (size_t i = 0; i < c.input_count(); ++i) {
    if (!c.has_input(i)) continue;
    std::optional<Dims> both = try_broadcast(dims, c.input(i).dims);
    if (!both)
      c.fail(str("shapes must broadcast, but found ", dims_text(dims), " and ",
                 dims_text(c.input(i).dims)));
    dims = std::move(*both);
  }
  return dims;
}

void check_one_type(InferContext& c) {
  const DType dtype = c.input(0).dtype;
  for (size_t i = 1; i < c.input_count(); ++i)
    if (c.has_input(i) && c.input(i).dtype != dtype)
      c.fail(str("operands must have the same type, but found ", name_of(dtype), " and ",
                 name_of(c.input(i).dtype)));
}

}  // namespace

std::string dims_text(const Dims& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? "," : "") + dims[i].text();
  return text + "]";
}

std::optional<Dims> try_broadcast(const Dims& a, const Dims& b) {
  const Dims& longer = a.size() >= b.size() ? a : b;
  const Dims& shorter = a.size() >= b.size() ? b : a;
  Dims result = longer;
  const size_t lead = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    DimExpr& dim = result[lead + i];
    if (dim == shorter[i] || is_one(shorter[i])) continue;
    if (!is_one(dim) && !may_equal(dim, shorter[i])) return std::nullopt;
    if (is_one(dim) || shorter[i].is_constant()) dim = shorter[i];
  }
  return result;
}

Dims broadcast_dims(const Dims& a, const Dims& b) {
  std::optional<Dims> both = try_broadcast(a, b);
  ORTM_CHECK(both, "[broadcast] shapes must be equal or 1, aligned to the right, but found ",
             dims_text(a), " and ", dims_text(b));
  return std::move(*both);
}

void infer_same_as_input(InferContext& c) { c.set(0, c.input(0).dtype, c.input(0).dims); }

void infer_predicate(InferContext& c) { c.set(0, DType::Bool, c.input(0).dims); }

void infer_broadcast(InferContext& c) {
  check_one_type(c);
  c.set(0, c.input(0).dtype, broadcast_operands(c));
}

void infer_broadcast_bool(InferContext& c) {
  check_one_type(c);
  c.set(0, DType::Bool, broadcast_operands(c));
}

std::vector<int64_t> reduced_axes(const Attrs& attrs, size_t rank) {
  std::vector<int64_t> axes;
  if (attrs.has("axes")) axes = attrs.integers("axes");
  if (axes.empty())
    for (size_t i = 0; i < rank; ++i) axes.push_back(static_cast<int64_t>(i));
  for (int64_t& axis : axes) {
    if (axis < 0) axis += static_cast<int64_t>(rank);
    ORTM_CHECK(axis >= 0 && axis < static_cast<int64_t>(rank),
               "[reduction] axes must be less than the rank ", rank, ", but found ", axis);
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

void infer_reduce(InferContext& c) {
  const Value& x = c.input(0);
  const std::vector<int64_t> axes = reduced_axes(c.attrs(), x.rank());
  const bool keep = c.attrs().flag("keepdims");
  Dims dims;
  for (size_t i = 0; i < x.rank(); ++i) {
    const bool reduced = std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(i));
    if (!reduced)
      dims.push_back(x.dims[i]);
    else if (keep)
      dims.push_back(1);
  }
  c.set(0, x.dtype, std::move(dims));
}

void infer_reduce_kept(InferContext& c) {
  Dims dims = c.input(0).dims;
  for (int64_t axis : reduced_axes(c.attrs(), dims.size())) dims[static_cast<size_t>(axis)] = 1;
  c.set(0, c.input(0).dtype, std::move(dims));
}

double row_product_flops(const Attrs&, const std::vector<Sizes>& in,
                         const std::vector<Sizes>& out) {
  return 2.0 * static_cast<double>(element_count(out.at(0))) * static_cast<double>(in.at(0).back());
}

void infer_matmul(InferContext& c) {
  const Value& a = c.input(0);
  const Value& b = c.input(1);
  if (a.rank() < 2 || b.rank() < 2)
    c.fail(str("operands must have rank 2 or more, but found ", dims_text(a.dims), " and ",
               dims_text(b.dims)));
  if (a.dtype != b.dtype)
    c.fail(str("operands must have the same type, but found ", name_of(a.dtype), " and ",
               name_of(b.dtype)));
  const size_t flip_a = c.attrs().flag("transA") ? 1 : 0;
  const size_t flip_b = c.attrs().flag("transB") ? 1 : 0;
  const DimExpr& m = a.dims[a.rank() - 2 + flip_a];
  const DimExpr& k = a.dims[a.rank() - 1 - flip_a];
  const DimExpr& n = b.dims[b.rank() - 1 - flip_b];
  if (!may_equal(k, b.dims[b.rank() - 2 + flip_b]))
    c.fail(str("inner dimensions must be equal, but found ", dims_text(a.dims), " and ",
               dims_text(b.dims)));
  std::optional<Dims> dims =
      try_broadcast(Dims(a.dims.begin(), a.dims.end() - 2), Dims(b.dims.begin(), b.dims.end() - 2));
  if (!dims)
    c.fail(str("batch dimensions must broadcast, but found ", dims_text(a.dims), " and ",
               dims_text(b.dims)));
  dims->push_back(m);
  dims->push_back(n);
  c.set(0, a.dtype, std::move(*dims));
}

void check_added_gradient(InferContext& c, size_t operand) {
  const Value &x = c.input(1), &added = c.input(operand);
  if (added.dtype != x.dtype || !may_equal(added.dims, x.dims))
    c.fail(str("dsum must be ", name_of(x.dtype), dims_text(x.dims), ", but found ",
               name_of(added.dtype), dims_text(added.dims)));
}

void set_rounded(InferContext& c) {
  const Value& y = *c.node().output(0);
  const DType to = c.attrs().dtype("to");
  if (y.dtype != DType::Float32 || (to != DType::Float16 && to != DType::BFloat16))
    c.fail(str("x must be f32 and `to` f16 or bf16, but found ", name_of(y.dtype), " and ",
               name_of(to)));
  c.set(0, to, Dims(y.dims));
}

}  // namespace ortmodule
