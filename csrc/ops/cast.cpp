// y = x in element type `to`

#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_cast(InferContext& c) { c.set(0, c.attrs().dtype("to"), c.input(0).dims); }

Grads cast_grad(GradContext& c) { return {c.cast(c.dy(), c.x().dtype())}; }

// Ignores device and layout: a piece runs on one device, where such a copy is the identity.
Values convert_to(TorchCall& t) {
  Value* x = t.tensor("self");
  require_real(t);
  if (is_complex(x->dtype)) t.refuse("only real types are converted");
  if (x->dtype == t.output().dtype) return {t.emit("Identity", {x})};
  return {t.cast(x, t.output().dtype)};
}

void export_cast(const OnnxRuleContext& c) {
  c.set(0, "Cast", {c.in(0)}, {{"to", c.attrs().dtype("to")}});
}

REGISTER_OP(Cast, {.inputs = {"x"},
                   .outputs = {"y"},
                   .kind = OpKind::Pointwise,
                   .infer = infer_cast,
                   .grad = cast_grad,
                   .onnx = {export_cast},
                   .from_torch = {{"aten._to_copy.default", convert_to},
                                  {"aten.to.dtype", convert_to},
                                  {"aten.to.dtype_layout", convert_to},
                                  {"aten.to.other", convert_to},
                                  {"aten.type_as.default", convert_to}}});

std::optional<RowNumbers> cast_numbers(const RowQuery& query) {
  const auto is_index = [](const Value* value) {
    return value->dtype == DType::Int64 || value->dtype == DType::Int32;
  };
  if (is_index(query.node.input(0)) && is_index(query.node.output())) return query.numbers[0];
  return query.numbers[0].name_rows() ? std::nullopt : std::optional(RowNumbers{});
}
REGISTER_ROW_NUMBERS(cast_numbers, "Cast");

}  // namespace
}  // namespace ortmodule
