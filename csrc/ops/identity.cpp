// y = x: Identity, and Detach, which stops the gradient. A `stationary` one stands where that
// gradient is zero, such as that of a variance by the mean; a second pass differentiates it.

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

Grads identity_grad(GradContext& c) { return {c.dy()}; }
Grads no_grad(GradContext&) { return {Handle()}; }

template <OpName op>
Values convert(TorchCall& t) {
  return {t.emit(op.text, {t.tensor("self")})};
}

REGISTER_OP(Identity, {.inputs = {"x"},
                       .outputs = {"y"},
                       .kind = OpKind::View,
                       .infer = infer_same_as_input,
                       .view = same_view,
                       .keeps_channels_last = always,
                       .grad = identity_grad,
                       .onnx = {export_identity},
                       .from_torch = {{"aten.contiguous.default", convert<"Identity">},
                                      {"aten.clone.default", convert<"Identity">},
                                      {"aten.alias.default", convert<"Identity">},
                                      {"aten.lift_fresh.default", convert<"Identity">},
                                      {"aten.lift_fresh_copy.default", convert<"Identity">},
                                      {"aten.positive.default", convert<"Identity">}}});

REGISTER_OP(Detach, {.domain = "com.microsoft",
                     .inputs = {"x"},
                     .outputs = {"y"},
                     .kind = OpKind::View,
                     .infer = infer_same_as_input,
                     .view = same_view,
                     .keeps_channels_last = always,
                     .grad = no_grad,
                     .non_differentiable = {0},
                     .onnx = {export_identity},
                     .from_torch = {{"aten.detach.default", convert<"Detach">},
                                    {"aten.detach_.default", convert<"Detach">}}});

REGISTER_ROW_AXES(rows_elementwise, "Identity", "Detach");
REGISTER_ROW_NUMBERS(numbers_of_operand, "Identity", "Detach");

}  // namespace
}  // namespace ortmodule
