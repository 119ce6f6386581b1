// y[i] = b[i] + a[i] y[i - 1] along `axis`, from the end if `reverse`. y before the first element
// is `initial`. With `shift`, y[i - 1] is multiplied by a[i - 1] instead, and the first is b[0].
// Without b it is a cumulative product.
//
// The gradient of b is the recurrence with the other direction and the other `shift`; that of a is
// its product with y. So gradients of any order are recurrences, and none divides by an element.

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_linear_recurrence(InferContext& c) {
  const Value& a = c.input(0);
  c.axis("axis", a.rank());
  if (c.has_input(1) && (c.input(1).dtype != a.dtype || !may_equal(c.input(1).dims, a.dims)))
    c.fail(str("a and b must have one type and shape, but found ", name_of(a.dtype),
               dims_text(a.dims), " and ", name_of(c.input(1).dtype), dims_text(c.input(1).dims)));
  infer_same_as_input(c);
}

/// x moved by one place along the axis, in the direction of the recurrence or against it;
/// `value` is at the place that becomes free.
Handle moved_by_one(GradContext& c, Handle x, bool ahead, double value) {
  const size_t rank = x.dims().size();
  int64_t axis = c.attrs().integer("axis");
  if (axis < 0) axis += static_cast<int64_t>(rank);
  const bool to_end = ahead != c.attrs().flag("reverse");
  Dims pads(2 * rank, DimExpr(0));
  pads[static_cast<size_t>(axis)] = to_end ? 1 : -1;
  pads[rank + static_cast<size_t>(axis)] = to_end ? -1 : 1;
  return c.emit("Pad", {x}, {{"pads", pads}, {"value", value}});
}

Grads linear_recurrence_grad(GradContext& c) {
  const bool shift = c.attrs().flag("shift");
  Attrs back = c.attrs();
  back.set("reverse", c.attrs().flag("reverse") ? 0 : 1);
  back.set("shift", shift ? 0 : 1);
  back.set("initial", 0.0);
  const Handle db = c.emit("LinearRecurrence", {c.x(0), c.dy()}, std::move(back));
  Grads grads(2);
  if (c.x(1)) grads[1] = db;
  if (!c.needs(0)) return grads;
  grads[0] = shift ? moved_by_one(c, db, false, 0.0) * c.y()
                   : db * moved_by_one(c, c.y(), true, c.attrs().number("initial"));
  return grads;
}

Values convert_cumprod(TorchCall& t) {
  require_real(t, true);
  Value* x = t.operand("self", t.output().dtype);
  if (x->rank() == 0) return {t.emit("Identity", {x})};
  return {t.emit("LinearRecurrence", {x, nullptr},
                 {{"axis", t.axis("dim", x->rank())}, {"initial", 1.0}})};
}

REGISTER_OP(LinearRecurrence,
            {.domain = "com.microsoft",
             .inputs = {"a", "b?"},
             .outputs = {"y"},
             .attrs = {{"axis", 0}, {"reverse", 0}, {"shift", 0}, {"initial", 0.0}},
             .kind = OpKind::Data,
             .infer = infer_linear_recurrence,
             .grad = linear_recurrence_grad,
             .from_torch = {{"aten.cumprod.default", convert_cumprod}}});

REGISTER_ROW_AXES(rows_beside_axis, "LinearRecurrence");

}  // namespace
}  // namespace ortmodule
