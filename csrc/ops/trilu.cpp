// y = x on and above (upper) or below diagonal `k` of the last two dimensions, 0 elsewhere

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_trilu(InferContext& c) {
  if (c.input(0).rank() < 2)
    c.fail(str("x must have rank 2 or more, but found ", c.input(0).rank()));
  infer_same_as_input(c);
}

Grads trilu_grad(GradContext& c) { return {c.emit("Trilu", {c.dy()}, c.attrs())}; }

template <int upper>
Values convert(TorchCall& t) {
  return {t.emit("Trilu", {t.tensor("self")}, {{"upper", upper}, {"k", t.dim("diagonal")}})};
}

void export_trilu(const OnnxRuleContext& c) {
  c.set(0, "Trilu", {c.in(0), c.b.size_scalar(c.attrs().dim("k"))}, c.pick({"upper"}));
}

REGISTER_OP(Trilu,
            {.inputs = {"x"},
             .outputs = {"y"},
             .attrs = {{"upper", 1}, {"k", 0}},
             .kind = OpKind::Data,
             .infer = infer_trilu,
             .grad = trilu_grad,
             .onnx = {export_trilu},
             .from_torch = {{"aten.tril.default", convert<0>}, {"aten.triu.default", convert<1>}}});

RowAxes matrix_rows(const RowQuery& query) { return rows_before(query, query.rank(0) - 2); }
REGISTER_ROW_AXES(matrix_rows, "Trilu");

}  // namespace
}  // namespace ortmodule
