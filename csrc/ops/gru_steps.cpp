// One direction of a GRU (Cho et al. 2014) as torch.nn.GRU computes it, the reset gate after the
// product (ONNX: linear_before_reset = 1):
//   r, z = sigmoid(pre + h r' + biases);  n = tanh(pre_n + b_n + r (h r_n' + b'_n));  h = n + z (h
//   - n)
// With `reset_before`, as files that are not from torch have it (ONNX's default), r multiplies the
// state in front of the product: n = tanh(pre_n + b_n + (r h) r_n' + b'_n). That form has no
// gradient. `gates` [.., 4 H] are r, z, n and the recurrent part of n; see lstm_steps.cpp.
#include "ops/recurrent.h"
#include "ops/spelled_out.h"

namespace ortmodule {
namespace {

struct Gru {
  enum Operand : size_t { kLengths = kInitialH + 1, kBatchSizes };
};

void infer_gru(InferContext& c) {
  infer_states(c, 3, Gru::kBatchSizes, c.input(kR).dims.back());
  c.set(2, c.input(kPre).dtype, with_width(c.input(kPre).dims, DimExpr(4) * c.input(kR).dims[1]));
}

void infer_gates(InferContext& c) {
  c.set(0, c.input(kPre).dtype, with_width(c.input(kPre).dims, DimExpr(4) * c.input(kR).dims[1]));
}

void infer_gru_grad(InferContext& c) {
  const Value &gates = c.input(0), &r = c.input(2);
  c.set(0, gates.dtype, with_width(gates.dims, r.dims[0]));
  c.set(1, gates.dtype, with_width(gates.dims, r.dims[0]));
  c.set(2, gates.dtype, {batch_of(c, gates, 5), r.dims[1]});
}

Grads gru_grad(GradContext& c) {
  ORTM_ASSERT(!c.attrs().flag("reset_before"), "only ONNX files have this form, for inference");
  const std::vector<Handle> back =
      c.emit_all("GRUStepsGrad",
                 {c.y(2), c.y(0), c.x(kR), c.dy(0), c.dy(1), c.x(kInitialH), c.x(Gru::kLengths),
                  c.x(Gru::kBatchSizes)},
                 direction_attrs(c.attrs()));
  Grads grads(7);
  grads[kPre] = back[0];
  grads[kInitialH] = back[2];
  set_weight_grads(c, grads, back[0], back[1], Gru::kLengths);
  return grads;
}

void export_gru(const OnnxRuleContext& c) {
  export_recurrent(
      c,
      {"GRU", {1, 0, 2}, 1, {{"linear_before_reset", int64_t{!c.attrs().flag("reset_before")}}}});
}

Values convert_gru(TorchCall& t) { return emit_layer(t, recurrent_layer(t), "GRUSteps", 3); }

REGISTER_OP(GRUSteps, {.domain = "com.microsoft",
                       .inputs = {"pre", "r", "input_bias?", "recurrent_bias?", "initial_h?",
                                  "sequence_lens?", "batch_sizes?"},
                       .outputs = {"y", "y_h", "gates"},
                       .attrs = {{"layout", 0}, {"reverse", 0}, {"reset_before", 0}},
                       .kind = OpKind::MatMul,
                       .infer = infer_gru,
                       .grad = gru_grad,
                       .non_differentiable = {Gru::kLengths, Gru::kBatchSizes},
                       .flops = recurrent_flops,
                       .always_kept = {0, 1},
                       .recompute = R"(gru_gates (pre, r, input_bias, recurrent_bias, y, initial_h,
                 sequence_lens, batch_sizes) => (gates) {
               gates = GRUGates<layout=@layout, reverse=@reverse>(pre, r, input_bias,
                   recurrent_bias, y, initial_h, sequence_lens, batch_sizes)
             })",
                       .onnx = {export_gru},
                       .from_torch = {{"ortmodule_py.gru.default", convert_gru}}});

REGISTER_OP(GRUGates, {.domain = "com.microsoft",
                       .inputs = {"pre", "r", "input_bias?", "recurrent_bias?", "y", "initial_h?",
                                  "sequence_lens?", "batch_sizes?"},
                       .outputs = {"gates"},
                       .attrs = {{"layout", 0}, {"reverse", 0}},
                       .kind = OpKind::MatMul,
                       .infer = infer_gates,
                       .flops = recurrent_flops});

REGISTER_OP(GRUStepsGrad, {.domain = "com.microsoft",
                           .inputs = {"gates", "y", "r", "dy?", "dy_h?", "initial_h?",
                                      "sequence_lens?", "batch_sizes?"},
                           .outputs = {"dpre", "drecurrent", "dinitial_h"},
                           .attrs = {{"layout", 0}, {"reverse", 0}},
                           .kind = OpKind::MatMul,
                           .infer = infer_gru_grad,
                           .flops = recurrent_grad_flops});

REGISTER_ROW_AXES(recurrent_rows, "GRUSteps");

[[maybe_unused]] const bool kGruIsSpelledOut = register_spelled_out("GRUSteps", spell_out_steps);

}  // namespace
}  // namespace ortmodule
