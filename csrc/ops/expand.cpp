// y = x broadcast along dimensions of size 1 and new leading ones, as a view

#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_expand(InferContext& c) {
  const Dims& shape = c.attrs().dims("shape");
  const std::optional<Dims> both = try_broadcast(c.input(0).dims, shape);
  if (!both || *both != shape)
    c.fail(str("shape must be one to which ", dims_text(c.input(0).dims), " broadcasts, but found ",
               dims_text(shape)));
  c.set(0, c.input(0).dtype, shape);
}

std::optional<Layout> expand_view(const Layout& in, const Attrs&, const Sizes& out_sizes, size_t) {
  Layout out{out_sizes, Sizes(out_sizes.size(), 0), in.offset};
  const size_t lead = out_sizes.size() - in.sizes.size();
  for (size_t d = out_sizes.size(); d-- > 0;) {
    if (d >= lead && in.sizes[d - lead] == out_sizes[d])
      out.strides[d] = in.strides[d - lead];
    else if (d < lead && out_sizes[d] == 1 && d + 1 < out_sizes.size())
      out.strides[d] = out_sizes[d + 1] * out.strides[d + 1];  // nothing is repeated
  }
  return out;
}

Grads expand_grad(GradContext& c) { return {c.sum_to(c.dy(), c.x().dims())}; }

// The gradient is a sum.
void refuse_complex(const TorchCall& t) {
  if (is_complex(t.output().dtype)) t.refuse("complex types have no op");
}

Values convert_expand(TorchCall& t) {
  refuse_complex(t);
  Value* x = t.tensor("self");
  if (x->dims == t.output().dims) return {t.emit("Identity", {x})};
  return {t.emit("Expand", {x}, {{"shape", t.output().dims}})};
}

// Expands each dimension to (repeats, size) and merges the two.
Values convert_repeat(TorchCall& t) {
  refuse_complex(t);
  Value* x = t.tensor("self");
  const Dims repeats = t.dims("repeats");
  const size_t lead = repeats.size() - x->rank();
  Dims apart;
  Dims repeated;
  for (size_t d = 0; d < repeats.size(); ++d) {
    const DimExpr size = d < lead ? DimExpr(1) : x->dims[d - lead];
    apart.insert(apart.end(), {DimExpr(1), size});
    repeated.insert(repeated.end(), {repeats[d], size});
  }
  Value* expanded = t.emit("Expand", {t.reshape(x, apart)}, {{"shape", repeated}});
  return {t.reshape(expanded, t.output().dims)};
}

// Functional form of self.copy_(src) and self.fill_(src): src with the shape and type of self.
template <OpName source>
Values convert_copy(TorchCall& t) {
  Value* src = t.operand(source.text, t.output().dtype);
  if (src->dims == t.output().dims) return {t.emit("Identity", {src})};
  return {t.emit("Expand", {src}, {{"shape", t.output().dims}})};
}

void export_expand(const OnnxRuleContext& c) {
  c.set(0, "Expand", {c.in(0), c.b.sizes(c.attrs().dims("shape"))});
}

REGISTER_OP(Expand, {.inputs = {"x"},
                     .outputs = {"y"},
                     .kind = OpKind::View,
                     .infer = infer_expand,
                     .view = expand_view,
                     .grad = expand_grad,
                     .onnx = {export_expand},
                     .from_torch = {{"aten.expand.default", convert_expand},
                                    {"aten.expand_as.default", convert_expand},
                                    {"aten.broadcast_to.default", convert_expand},
                                    {"aten.repeat.default", convert_repeat},
                                    {"aten.copy.default", convert_copy<"src">},
                                    {"aten.fill.Tensor", convert_copy<"value">}}});

RowAxes expand_rows(const RowQuery& query) {
  if (query.axis(0) != kWhole) return rows_elementwise(query);
  const Dims& to = query.node.output()->dims;  // the same for each row
  for (size_t d = 0; d < to.size(); ++d)
    if (query.scales(to[d])) return std::vector<int>{static_cast<int>(d)};
  return std::nullopt;
}
REGISTER_ROW_AXES(expand_rows, "Expand");
REGISTER_ROW_NUMBERS(numbers_of_operand, "Expand");

}  // namespace
}  // namespace ortmodule
