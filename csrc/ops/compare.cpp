// Comparisons such as y = a < b, with a bool result; IsNaN and IsInf of one operand

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// Casts both operands to their torch.result_type: 1 < 1.5 compares floats.
template <OpName op>
Values convert_compare(TorchCall& t) {
  const DType dtype = result_type(t, {"self", "other"});
  return {t.emit(op.text, {t.element("self", dtype), t.element("other", dtype)})};
}

template <OpName op>
Values convert_predicate(TorchCall& t) {
  Value* x = t.tensor("self");
  if (x->dtype == DType::Bool) return {t.full(0.0, x->dims, DType::Bool)};
  return {t.emit(op.text, {x})};
}

void export_not_equal(const OnnxRuleContext& c) { c.set(0, "Not", {c.op("Equal", c.ins())}); }

OpDef comparison(std::string_view name, bool commutative, std::vector<TorchRow> rows,
                 OnnxRule onnx = {export_pointwise}) {
  return {.name = name,
          .domain = name == "NotEqual" ? "com.microsoft" : "",
          .inputs = {"a", "b"},
          .outputs = {"y"},
          .kind = OpKind::Pointwise,
          .commutative = commutative,
          .infer = infer_broadcast_bool,
          .non_differentiable = {0, 1},
          .onnx = std::move(onnx),
          .from_torch = std::move(rows)};
}

OpDef predicate(std::string_view name, std::vector<TorchRow> rows) {
  return {.name = name,
          .inputs = {"x"},
          .outputs = {"y"},
          .kind = OpKind::Pointwise,
          .infer = infer_predicate,
          .non_differentiable = {0},
          .onnx = {export_pointwise},
          .from_torch = std::move(rows)};
}

std::vector<OpDef> comparisons() {
  return {
      comparison("Equal", true,
                 {{"aten.eq.Tensor", convert_compare<"Equal">},
                  {"aten.eq.Scalar", convert_compare<"Equal">}}),
      comparison("NotEqual", true,
                 {{"aten.ne.Tensor", convert_compare<"NotEqual">},
                  {"aten.ne.Scalar", convert_compare<"NotEqual">}},
                 {export_not_equal}),
      comparison("Less", false,
                 {{"aten.lt.Tensor", convert_compare<"Less">},
                  {"aten.lt.Scalar", convert_compare<"Less">}}),
      comparison("LessOrEqual", false,
                 {{"aten.le.Tensor", convert_compare<"LessOrEqual">},
                  {"aten.le.Scalar", convert_compare<"LessOrEqual">}}),
      comparison("Greater", false,
                 {{"aten.gt.Tensor", convert_compare<"Greater">},
                  {"aten.gt.Scalar", convert_compare<"Greater">}}),
      comparison("GreaterOrEqual", false,
                 {{"aten.ge.Tensor", convert_compare<"GreaterOrEqual">},
                  {"aten.ge.Scalar", convert_compare<"GreaterOrEqual">}}),
      predicate("IsNaN", {{"aten.isnan.default", convert_predicate<"IsNaN">}}),
      predicate("IsInf", {{"aten.isinf.default", convert_predicate<"IsInf">}}),
  };
}

REGISTER_OPS(comparisons());

}  // namespace
}  // namespace ortmodule
