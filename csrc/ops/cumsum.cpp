// y[i] = x[0] + ... + x[i] along `axis`, or x[i] + ... + x[n - 1] if `reverse`

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_cumsum(InferContext& c) {
  c.axis("axis", c.input(0).rank());
  infer_same_as_input(c);
}

Grads cumsum_grad(GradContext& c) {
  Attrs attrs = c.attrs();
  attrs.set("reverse", c.attrs().flag("reverse") ? 0 : 1);
  return {c.emit("CumSum", {c.dy()}, std::move(attrs))};
}

Values convert_cumsum(TorchCall& t) {
  Value* x = t.operand("self", t.output().dtype);
  if (x->rank() == 0) return {t.emit("Identity", {x})};
  return {t.emit("CumSum", {x}, {{"axis", t.axis("dim", x->rank())}})};
}

void export_cumsum(const OnnxRuleContext& c) {
  c.set(0, "CumSum", {c.in(0), c.b.size_scalar(c.attrs().dim("axis"))},
        c.pick({"exclusive", "reverse"}));
}

REGISTER_OP(CumSum, {.inputs = {"x"},
                     .outputs = {"y"},
                     .attrs = {{"axis", 0}, {"reverse", 0}},
                     .kind = OpKind::Data,
                     .infer = infer_cumsum,
                     .grad = cumsum_grad,
                     .onnx = {export_cumsum},
                     .from_torch = {{"aten.cumsum.default", convert_cumsum}}});

REGISTER_ROW_AXES(rows_beside_axis, "CumSum");

}  // namespace
}  // namespace ortmodule
