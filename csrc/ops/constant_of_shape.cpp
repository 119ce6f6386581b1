// y = a tensor of `shape` and `dtype` filled with `value`, a number or a size

#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_constant(InferContext& c) {
  c.set(0, c.attrs().dtype("dtype"), c.attrs().dims("shape"));
}

Values filled(TorchCall& t, double value) {
  require_real(t);
  return {t.full(value, t.output().dims, t.output().dtype)};
}

// Memory that torch leaves uninitialized (torch.empty) is zero here, so that runs are repeatable.
Values convert_zeros(TorchCall& t) { return filled(t, 0.0); }
Values convert_ones(TorchCall& t) { return filled(t, 1.0); }

template <OpName argument>
Values convert_full(TorchCall& t) {
  require_real(t);
  const Value* value = t.operand(argument.text, t.output().dtype);
  if (!value->is_literal()) t.refuse("the value must be a number");
  const auto* number = std::get_if<double>(&value->literal());
  const Attr attr = number ? Attr(*number) : Attr(std::get<DimExpr>(value->literal()));
  return {t.emit("ConstantOfShape", {},
                 {{"value", attr}, {"shape", t.output().dims}, {"dtype", t.output().dtype}})};
}

void export_constant_of_shape(const OnnxRuleContext& c) {
  const DType dtype = c.attrs().dtype("dtype");
  const auto* dim = std::get_if<DimExpr>(c.attrs().find("value"));
  if (dim && !dim->is_constant()) {
    const std::string size = c.b.size_scalar(*dim);
    const std::string value = dtype == DType::Int64 ? size : c.cast(size, dtype);
    return c.set(0, "Expand", {value, c.b.sizes(c.attrs().dims("shape"))});
  }
  const OnnxTensor value{dtype, {1}, encode_scalar(c.attrs().number("value"), dtype)};
  c.set(0, "ConstantOfShape", {c.b.sizes(c.attrs().dims("shape"))}, {{"value", value}});
}

REGISTER_OP(ConstantOfShape, {.inputs = {},
                              .outputs = {"y"},
                              .kind = OpKind::Data,
                              .infer = infer_constant,
                              .onnx = {export_constant_of_shape},
                              .from_torch = {{"aten.zeros.default", convert_zeros},
                                             {"aten.zeros_like.default", convert_zeros},
                                             {"aten.new_zeros.default", convert_zeros},
                                             {"aten.empty.memory_format", convert_zeros},
                                             {"aten.empty_like.default", convert_zeros},
                                             {"aten.new_empty.default", convert_zeros},
                                             {"aten.ones.default", convert_ones},
                                             {"aten.ones_like.default", convert_ones},
                                             {"aten.new_ones.default", convert_ones},
                                             {"aten.full.default", convert_full<"fill_value">},
                                             {"aten.full_like.default", convert_full<"fill_value">},
                                             {"aten.new_full.default", convert_full<"fill_value">},
                                             {"aten.fill.Scalar", convert_full<"value">},
                                             {"aten.scalar_tensor.default", convert_full<"s">}}});

RowAxes fill_rows(const RowQuery& query) {
  const Dims& to = query.node.output()->dims;
  for (size_t d = 0; d < to.size(); ++d)
    if (query.scales(to[d])) return std::vector<int>{static_cast<int>(d)};
  return std::nullopt;
}
std::optional<RowNumbers> fill_numbers(const RowQuery& query) {
  const auto* size = std::get_if<DimExpr>(query.node.attrs.find("value"));
  return size ? RowNumbers::between(query.each(*size), query.each(*size)) : RowNumbers{};
}
REGISTER_ROW_AXES(fill_rows, "ConstantOfShape");
REGISTER_ROW_NUMBERS(fill_numbers, "ConstantOfShape");

}  // namespace
}  // namespace ortmodule
