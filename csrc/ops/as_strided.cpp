// y[i, j, ..] = the element of x at offset + i strides[0] + j strides[1] + .., in row-major order:
// windows of one memory, which may overlap. AsStridedGrad adds them up. x is row-major where
// capture makes it.
#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_as_strided(InferContext& c) {
  const Dims& shape = c.attrs().dims("shape");
  if (shape.size() != c.attrs().dims("strides").size())
    c.fail(str("strides must fit the shape ", dims_text(shape), ", but found ",
               dims_text(c.attrs().dims("strides"))));
  c.set(0, c.input(0).dtype, shape);
}

std::optional<Layout> as_strided_view(const Layout& in, const Attrs& attrs, const Sizes& out_sizes,
                                      size_t) {
  ORTM_ASSERT(is_contiguous(in), "the operand of AsStrided must be row-major");
  const std::vector<int64_t> strides = attrs.integers("strides");
  const int64_t offset = attrs.integer("offset");
  Layout out{out_sizes, Sizes(strides.begin(), strides.end()), in.offset};
  if (element_count(out_sizes) == 0) return out;
  out.offset += offset;
  ORTM_CHECK(offset >= 0 && offset + extent(out) <= element_count(in.sizes),
             "[as_strided] windows must lie within the ", element_count(in.sizes),
             " elements of the tensor, but found an end at ", offset + extent(out));
  return out;
}

Grads as_strided_grad(GradContext& c) {
  Attrs attrs = c.attrs();
  attrs.set("shape", c.x().dims());
  return {c.emit("AsStridedGrad", {c.dy()}, std::move(attrs))};
}

void infer_as_strided_grad(InferContext& c) { c.set(0, c.input(0).dtype, c.attrs().dims("shape")); }

Grads as_strided_grad_grad(GradContext& c) {
  Attrs attrs = c.attrs();
  attrs.set("shape", c.x().dims());
  return {c.emit("AsStrided", {c.emit("Contiguous", {c.dy()})}, std::move(attrs))};
}

Values convert_as_strided(TorchCall& t) {
  require_real(t, true);
  Value* x = t.emit("Contiguous", {t.tensor("self")});
  const DimExpr offset = t.is_none("storage_offset") ? DimExpr(0) : t.dim("storage_offset");
  return {t.emit("AsStrided", {x},
                 {{"shape", t.output().dims}, {"strides", t.dims("stride")}, {"offset", offset}})};
}

/// A dimension as windows of `size` elements side by side, whose elements are the last dimension.
Value* without_overlap(TorchCall& t, Value* x, size_t axis, const DimExpr& size) {
  Dims parts = x->dims, perm;
  parts[axis] = t.output().dims[axis];
  parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(axis) + 1, size);
  for (size_t d = 0; d < parts.size(); ++d)
    if (d != axis + 1) perm.emplace_back(static_cast<int64_t>(d));
  perm.emplace_back(static_cast<int64_t>(axis) + 1);
  return t.emit("Transpose", {t.reshape(x, parts)}, {{"perm", perm}});
}

/// Windows of `size` elements, each `step` behind the last; their elements are the last dimension.
Values convert_unfold(TorchCall& t) {
  require_real(t, true);
  Value* x = t.tensor("self");
  if (x->rank() == 0) t.refuse("a scalar has no windows");
  const auto axis = static_cast<size_t>(t.axis("dimension", x->rank()));
  const DimExpr size = t.dim("size");
  if (size == t.dim("step") && t.output().dims[axis] * size == x->dims[axis])
    return {without_overlap(t, x, axis, size)};
  Dims strides(x->rank(), DimExpr(1));
  for (size_t d = x->rank() - 1; d-- > 0;) strides[d] = strides[d + 1] * x->dims[d + 1];
  const DimExpr neighbour = strides[axis];
  strides[axis] = neighbour * t.dim("step");
  strides.push_back(neighbour);
  return {t.emit("AsStrided", {t.emit("Contiguous", {x})},
                 {{"shape", t.output().dims}, {"strides", strides}})};
}

REGISTER_OP(AsStrided, {.domain = "com.microsoft",
                        .inputs = {"x"},
                        .outputs = {"y"},
                        .attrs = {{"offset", 0}},
                        .kind = OpKind::View,
                        .infer = infer_as_strided,
                        .view = as_strided_view,
                        .grad = as_strided_grad});

// The torch spelling is here, since there are windows only where their gradient has a kernel.
REGISTER_OP(AsStridedGrad, {.domain = "com.microsoft",
                            .inputs = {"dy"},
                            .outputs = {"dx"},
                            .attrs = {{"offset", 0}},
                            .kind = OpKind::Data,
                            .infer = infer_as_strided_grad,
                            .grad = as_strided_grad_grad,
                            .from_torch = {{"aten.as_strided.default", convert_as_strided},
                                           {"aten.unfold.default", convert_unfold}}});

}  // namespace
}  // namespace ortmodule
