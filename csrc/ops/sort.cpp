// Sort: all elements along `axis` in order; TopK: the k largest or smallest. Both also return the
// indices. With `stable`, of equal elements the one with the lower index comes first, which ONNX
// demands of TopK and torch does not.

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_sort(InferContext& c) {
  const Value& x = c.input(0);
  c.axis("axis", x.rank());
  c.set(0, x.dtype, x.dims);
  c.set(1, DType::Int64, x.dims);
}

void infer_top_k(InferContext& c) {
  const Value& x = c.input(0);
  Dims dims = x.dims;
  const auto axis = static_cast<size_t>(c.axis("axis", x.rank()));
  const DimExpr k = c.attrs().dim("k");
  if (k.is_constant() && dims[axis].is_constant() && k.value() > dims[axis].value())
    c.fail(str("k must be at most ", dims[axis].value(), ", but found ", k.value()));
  dims[axis] = k;
  c.set(0, x.dtype, dims);
  c.set(1, DType::Int64, dims);
}

// Indices are unique along `axis`, so the order of additions does not matter.
Grads values_grad(GradContext& c) {
  const Handle zeros = c.full(0.0, c.x(0).dims(), c.dy().dtype());
  return {c.emit("ScatterElements", {zeros, c.y(1), c.dy()},
                 {{"axis", *c.attrs().find("axis")}, {"reduction", "add"}})};
}

Value* sorted_operand(TorchCall& t) {
  require_real(t);
  Value* x = t.tensor("self");
  if (x->rank() == 0) t.refuse("a scalar has no axis");
  return x;
}

Values convert_sort(TorchCall& t) {
  Value* x = sorted_operand(t);
  return t.emit_all("Sort", {x},
                    {{"axis", t.axis("dim", x->rank(), -1)},
                     {"descending", t.flag("descending") ? 1 : 0},
                     {"stable", t.flag("stable") ? 1 : 0}});
}

Values convert_top_k(TorchCall& t) {
  Value* x = sorted_operand(t);
  return t.emit_all("TopK", {x},
                    {{"k", t.dim("k")},
                     {"axis", t.axis("dim", x->rank(), -1)},
                     {"largest", t.flag("largest", true) ? 1 : 0},
                     {"sorted", t.flag("sorted", true) ? 1 : 0}});
}

void export_sort(const OnnxRuleContext& c) {
  const Dims& dims = c.value(0).dims;
  const int64_t axis = c.axis("axis", dims.size());
  c.b.add("TopK", {c.in(0), c.b.sizes({dims[static_cast<size_t>(axis)]})},
          {{"axis", axis}, {"largest", c.attrs().integer("descending", 0)}}, {c.out(0), c.out(1)});
}

void export_top_k(const OnnxRuleContext& c) {
  c.b.add("TopK", {c.in(0), c.b.sizes({c.attrs().dim("k")})}, c.pick({"axis", "largest", "sorted"}),
          {c.out(0), c.out(1)});
}

REGISTER_OP(Sort, {.domain = "com.microsoft",
                   .inputs = {"x"},
                   .outputs = {"values", "indices"},
                   .attrs = {{"axis", -1}, {"descending", 0}, {"stable", 0}},
                   .kind = OpKind::Data,
                   .infer = infer_sort,
                   .grad = values_grad,
                   .onnx = {export_sort},
                   .from_torch = {{"aten.sort.default", convert_sort},
                                  {"aten.sort.stable", convert_sort}}});

REGISTER_OP(TopK, {.inputs = {"x"},
                   .outputs = {"values", "indices"},
                   .attrs = {{"axis", -1}, {"largest", 1}, {"sorted", 1}},
                   .kind = OpKind::Data,
                   .infer = infer_top_k,
                   .grad = values_grad,
                   .onnx = {export_top_k},
                   .from_torch = {{"aten.topk.default", convert_top_k}}});

REGISTER_ROW_AXES(rows_beside_axis, "Sort", "TopK");

}  // namespace
}  // namespace ortmodule
