// Logical ops on bools (And Or Xor Not) and bitwise ops on integers (BitwiseAnd ..., shifts)

#include "ops/infer_rules.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// logical_*: nonzero elements of any type are true.
template <OpName op>
Values convert_logical(TorchCall& t) {
  Values operands = {t.operand("self", DType::Bool)};
  if (t.has("other")) operands.push_back(t.operand("other", DType::Bool));
  return {t.emit(op.text, std::move(operands))};
}

// bitwise_* of bools is the logical op.
template <OpName logical, OpName bitwise>
Values convert_bitwise(TorchCall& t) {
  const DType dtype = t.output().dtype;
  Values operands = {t.operand("self", dtype)};
  if (t.has("other")) operands.push_back(t.operand("other", dtype));
  return {t.emit(dtype == DType::Bool ? logical.text : bitwise.text, std::move(operands))};
}

void infer_bits(InferContext& c) {
  if (!is_integral(c.input(0).dtype))
    c.fail(str("operands must be integers, but found ", name_of(c.input(0).dtype)));
  infer_broadcast(c);
}

void infer_bools(InferContext& c) {
  if (c.input(0).dtype != DType::Bool)
    c.fail(str("operands must be bool, but found ", name_of(c.input(0).dtype)));
  infer_broadcast(c);
}

OpDef logic(std::string_view name, InferFn infer, bool binary, std::vector<TorchRow> rows) {
  std::vector<std::string_view> inputs = {"a"};
  if (binary) inputs.push_back("b");
  return {.name = name,
          .inputs = std::move(inputs),
          .outputs = {"y"},
          .kind = OpKind::Pointwise,
          .commutative = binary,
          .infer = infer,
          .onnx = {export_pointwise},
          .from_torch = std::move(rows)};
}

template <bool kLeft>
void export_shift(const OnnxRuleContext& c) {
  c.set(0, "BitShift", c.ins(), {{"direction", std::string(kLeft ? "LEFT" : "RIGHT")}});
}

OpDef shift(std::string_view name, void (*write)(const OnnxRuleContext&)) {
  OpDef def = logic(name, infer_bits, true, {});
  def.domain = "com.microsoft";
  def.commutative = false;
  def.onnx = {write};
  return def;
}

std::vector<OpDef> logic_ops() {
  return {
      logic("And", infer_bools, true,
            {{"aten.logical_and.default", convert_logical<"And">},
             {"aten.bitwise_and.Tensor", convert_bitwise<"And", "BitwiseAnd">},
             {"aten.bitwise_and.Scalar", convert_bitwise<"And", "BitwiseAnd">}}),
      logic("Or", infer_bools, true,
            {{"aten.logical_or.default", convert_logical<"Or">},
             {"aten.bitwise_or.Tensor", convert_bitwise<"Or", "BitwiseOr">},
             {"aten.bitwise_or.Scalar", convert_bitwise<"Or", "BitwiseOr">}}),
      logic("Xor", infer_bools, true,
            {{"aten.logical_xor.default", convert_logical<"Xor">},
             {"aten.bitwise_xor.Tensor", convert_bitwise<"Xor", "BitwiseXor">},
             {"aten.bitwise_xor.Scalar", convert_bitwise<"Xor", "BitwiseXor">}}),
      logic("Not", infer_bools, false,
            {{"aten.logical_not.default", convert_logical<"Not">},
             {"aten.bitwise_not.default", convert_bitwise<"Not", "BitwiseNot">}}),
      logic("BitwiseAnd", infer_bits, true, {}),
      logic("BitwiseOr", infer_bits, true, {}),
      logic("BitwiseXor", infer_bits, true, {}),
      logic("BitwiseNot", infer_bits, false, {}),
      shift("BitShiftLeft", export_shift<true>),
      shift("BitShiftRight", export_shift<false>),
  };
}

REGISTER_OPS(logic_ops());

Values import_bit_shift(OnnxCall& c) {
  const Values values = c.broadcast({c.in(0), c.in(1)});
  if (!is_integral(values.at(0)->dtype)) c.refuse("the operands must be integers");
  const std::string direction = c.string("direction", "");
  if (direction != "LEFT" && direction != "RIGHT")
    c.refuse(str("direction must be LEFT or RIGHT, but found '", direction, "'"));
  return {c.pointwise(direction == "LEFT" ? "BitShiftLeft" : "BitShiftRight", values)};
}

REGISTER_ONNX({{"BitShift", 11, import_bit_shift}});

}  // namespace
}  // namespace ortmodule
