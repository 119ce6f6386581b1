// LSTMSteps (ops/lstm_steps.cpp) with recurrent weights r [H, 4 H] of 8 bits, which the products of
// all steps read as they are: (r - r_zero) * r_scale, where scale and zero point are one number or
// one for each column. For inference on padded sequences [T, B, 4 H]. A kernel may round each state
// to bytes of its range (DynamicQuantizeLinear) for its product, as onnxruntime does; the body does
// not.

#include "ir/text.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

struct QuantizedLstm {
  enum Operand : size_t { kPre, kR, kScale, kZero, kInputBias, kRecurrentBias, kInitialH };
};

void check_columns(InferContext& c, size_t i, DType dtype, const DimExpr& columns) {
  if (!c.has_input(i)) return;
  const Value& value = c.input(i);
  if (value.dtype != dtype ||
      (product(value.dims) != DimExpr(1) && !may_equal(value.dims, {columns})))
    c.fail(str("operand ", i, " must be ", name_of(dtype), " of one element or ", columns,
               ", but found ", name_of(value.dtype), dims_text(value.dims)));
}

void infer_steps(InferContext& c) {
  const Value &pre = c.input(QuantizedLstm::kPre), &r = c.input(QuantizedLstm::kR);
  const bool bytes = r.dtype == DType::Int8 || r.dtype == DType::UInt8;
  if (pre.rank() != 3 || pre.dtype != DType::Float32 || !bytes || r.rank() != 2 ||
      !may_equal(r.dims[1], pre.dims[2]) || !may_equal(r.dims[1], DimExpr(4) * r.dims[0]))
    c.fail(str("pre must be f32[T,B,4 H] and r [H,4 H] of 8 bits, but found ", name_of(pre.dtype),
               dims_text(pre.dims), " and ", name_of(r.dtype), dims_text(r.dims)));
  check_columns(c, QuantizedLstm::kScale, DType::Float32, r.dims[1]);
  check_columns(c, QuantizedLstm::kZero, r.dtype, r.dims[1]);
  const Dims state{pre.dims[1], r.dims[0]};
  c.set(0, pre.dtype, {pre.dims[0], pre.dims[1], r.dims[0]});
  c.set(1, pre.dtype, state);
  c.set(2, pre.dtype, state);
}

double steps_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&) {
  return 2.0 *
         static_cast<double>(in.at(QuantizedLstm::kPre).at(0) * in.at(QuantizedLstm::kPre).at(1)) *
         static_cast<double>(element_count(in.at(QuantizedLstm::kR)));
}

std::string steps_body(const Node& node) {
  std::string lines = "  wide = Cast<to=f32> (r)\n", name = "wide";
  if (node.input(QuantizedLstm::kZero)) {
    lines += "  point = Cast<to=f32> (r_zero)\n  centred = Sub (wide, point)\n";
    name = "centred";
  }
  return str(
      "steps (pre, r, r_scale, r_zero, input_bias, recurrent_bias, initial_h, initial_c, "
      "sequence_lens) => (y, y_h, y_c) {\n",
      lines, "  scaled = Mul (", name, ", r_scale)\n",
      "  flipped = Transpose<perm=[1,0]> (scaled)\n",
      "  y, y_h, y_c, gates, cells = LSTMSteps<reverse=@reverse> (pre, flipped, input_bias, "
      "recurrent_bias, initial_h, initial_c, sequence_lens)\n}");
}

REGISTER_OP(QuantizedLSTMSteps,
            {.domain = "com.microsoft",
             .inputs = {"pre", "r", "r_scale", "r_zero?", "input_bias?", "recurrent_bias?",
                        "initial_h?", "initial_c?", "sequence_lens?"},
             .outputs = {"y", "y_h", "y_c"},
             .attrs = {{"reverse", 0}},
             .kind = OpKind::MatMul,
             .infer = infer_steps,
             .flops = steps_flops,
             .body_of = steps_body});

}  // namespace
}  // namespace ortmodule
