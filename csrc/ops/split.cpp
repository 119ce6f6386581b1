// ys = consecutive parts of x along `axis` with lengths `sizes`; the gradient is Concat

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_split(InferContext& c) {
  const Value& x = c.input(0);
  const auto axis = static_cast<size_t>(c.axis("axis", x.rank()));
  const Dims& sizes = c.attrs().dims("sizes");
  if (sizes.size() != c.node().outputs().size())
    c.fail(str("sizes must have one size per output, but found ", sizes.size(), " for ",
               c.node().outputs().size()));
  DimExpr total = 0;
  for (const DimExpr& size : sizes) total = total + size;
  // Allows parts of symbolic sizes whose total exceeds the dimension by a constant.
  const DimExpr excess = total - x.dims[axis];
  if (excess.is_constant() && excess.value() != 0)
    c.fail(str("sizes must add up to ", x.dims[axis], ", but found ", dims_text(sizes)));
  for (size_t i = 0; i < sizes.size(); ++i) {
    Dims dims = x.dims;
    dims[axis] = sizes[i];
    c.set(i, x.dtype, std::move(dims));
  }
}

std::optional<Layout> split_view(const Layout& in, const Attrs& attrs, const Sizes& out_sizes,
                                 size_t output) {
  const int64_t given = attrs.integer("axis");
  const auto axis =
      static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(in.sizes.size()) : given);
  const std::vector<int64_t> sizes = attrs.integers("sizes");
  int64_t start = 0;
  for (size_t i = 0; i < output; ++i) start += sizes[i];
  Layout out{out_sizes, in.strides, in.offset};
  ORTM_CHECK(start + out_sizes[axis] <= in.sizes[axis], "[plan] parts of a dimension of ",
             in.sizes[axis], " elements must be within it, but found ", start, " to ",
             start + out_sizes[axis]);
  if (element_count(out_sizes) > 0) out.offset += start * in.strides[axis];
  return out;
}

Grads split_grad(GradContext& c) {
  std::vector<Handle> parts;
  for (size_t i = 0; i < c.node().outputs().size(); ++i) parts.push_back(c.dy_or_zero(i));
  return {c.emit("Concat", parts, {{"axis", *c.attrs().find("axis")}})};
}

Values split(TorchCall& t, const Dims& sizes, int64_t axis) {
  return t.emit_all("Split", {t.tensor("self")}, {{"axis", axis}, {"sizes", sizes}}, sizes.size());
}

// All overloads of split: the tracer knows the sizes of the parts.
Values convert_split(TorchCall& t) {
  const size_t rank = t.tensor("self")->rank();
  if (rank == 0) t.refuse("a scalar has no parts");
  const int64_t axis = t.axis("dim", rank);
  Dims sizes;
  for (const TorchOutput& part : t.outputs())
    sizes.push_back(part.dims.at(static_cast<size_t>(axis)));
  return split(t, sizes, axis);
}

Values convert_unbind(TorchCall& t) {
  const int64_t axis = t.axis("dim", t.tensor("self")->rank());
  Values rows = split(t, Dims(t.outputs().size(), DimExpr(1)), axis);
  for (Value*& row : rows) row = t.emit("Squeeze", {row}, {{"axes", Dims{axis}}});
  return rows;
}

void export_split(const OnnxRuleContext& c) {
  std::vector<std::string> outputs;
  for (size_t i = 0; i < c.node.outputs().size(); ++i) outputs.push_back(c.out(i));
  c.b.add("Split", {c.in(0), c.b.sizes(c.attrs().dims("sizes"))}, c.pick({"axis"}), outputs);
}

REGISTER_OP(Split, {.inputs = {"x"},
                    .outputs = {"ys*"},
                    .attrs = {{"axis", 0}},
                    .kind = OpKind::View,
                    .infer = infer_split,
                    .view = split_view,
                    .grad = split_grad,
                    .onnx = {export_split},
                    .from_torch = {{"aten.split.Tensor", convert_split},
                                   {"aten.split.sizes", convert_split},
                                   {"aten.unsafe_split.Tensor", convert_split},
                                   {"aten.unsafe_split_with_sizes.default", convert_split},
                                   {"aten.unsafe_chunk.default", convert_split},
                                   {"aten.split_with_sizes.default", convert_split},
                                   {"aten.chunk.default", convert_split},
                                   {"aten.tensor_split.sections", convert_split},
                                   {"aten.tensor_split.indices", convert_split},
                                   {"aten.unbind.int", convert_unbind}}});

REGISTER_ROW_AXES(rows_beside_axis, "Split");

}  // namespace
}  // namespace ortmodule
