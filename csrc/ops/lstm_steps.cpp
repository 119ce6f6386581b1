// One direction of an LSTM (Hochreiter and Schmidhuber 1997) as torch.nn.LSTM computes it:
//   i, f, g, o = pre + h r' + biases;  c = sigmoid(f) c + sigmoid(i) tanh(g);  h = sigmoid(o)
//   tanh(c)
// `gates` and `cells` are what backward reads. They can be computed again from the states y by one
// product (LSTMGates); y itself is always kept, since that would run the recurrence again.
#include "ops/recurrent.h"

namespace ortmodule {
namespace {

enum Operand : size_t { kPre, kR, kInputBias, kRecurrentBias, kInitialH, kInitialC, kLengths };

void infer_lstm(InferContext& c) {
  infer_states(c, kR, 4);
  const Value &pre = c.input(kPre), &r = c.input(kR);
  c.set(2, pre.dtype, c.node().output(1)->dims);
  c.set(3, pre.dtype, pre.dims);
  c.set(4, pre.dtype, with_width(pre.dims, r.dims[1]));
}

void infer_gates(InferContext& c) {
  c.set(0, c.input(kPre).dtype, c.input(kPre).dims);
  c.set(1, c.input(4).dtype, c.input(4).dims);
}

void infer_grad(InferContext& c) {
  const Value &gates = c.input(0), &r = c.input(2);
  const Dims state{gates.dims[c.attrs().flag("layout") ? 0 : 1], r.dims[1]};
  c.set(0, gates.dtype, gates.dims);
  c.set(1, gates.dtype, state);
  c.set(2, gates.dtype, state);
}

Grads lstm_grad(GradContext& c) {
  const std::vector<Handle> back = c.emit_all(
      "LSTMStepsGrad",
      {c.y(3), c.y(4), c.x(kR), c.dy(0), c.dy(1), c.dy(2), c.x(kInitialC), c.x(kLengths)},
      direction_attrs(c.attrs()));
  Grads grads(7);
  grads[kPre] = back[0];
  grads[kInitialH] = back[1];
  grads[kInitialC] = back[2];
  set_weight_grads(c, grads, back[0], back[0], kInitialH, kLengths);
  return grads;
}

void export_lstm(const OnnxRuleContext& c) { export_recurrent(c, {"LSTM", {0, 3, 1, 2}, 2}); }

Values convert_lstm(TorchCall& t) { return emit_layer(t, recurrent_layer(t), "LSTMSteps", 5); }

REGISTER_OP(
    LSTMSteps,
    {.domain = "com.microsoft",
     .inputs = {"pre", "r", "input_bias?", "recurrent_bias?", "initial_h?", "initial_c?",
                "sequence_lens?"},
     .outputs = {"y", "y_h", "y_c", "gates", "cells"},
     .attrs = {{"layout", 0}, {"reverse", 0}},
     .kind = OpKind::MatMul,
     .infer = infer_lstm,
     .grad = lstm_grad,
     .non_differentiable = {kLengths},
     .flops = recurrent_flops,
     .always_kept = {0, 1, 2},
     .recompute = R"(lstm_gates (pre, r, input_bias, recurrent_bias, y, initial_h, initial_c,
                 sequence_lens) => (gates, cells) {
               gates, cells = LSTMGates<layout=@layout, reverse=@reverse>(pre, r, input_bias,
                   recurrent_bias, y, initial_h, initial_c, sequence_lens)
             })",
     .onnx = {export_lstm},
     .from_torch = {{"ortmodule_py.lstm.default", convert_lstm}}});

REGISTER_OP(LSTMGates, {.domain = "com.microsoft",
                        .inputs = {"pre", "r", "input_bias?", "recurrent_bias?", "y", "initial_h?",
                                   "initial_c?", "sequence_lens?"},
                        .outputs = {"gates", "cells"},
                        .attrs = {{"layout", 0}, {"reverse", 0}},
                        .kind = OpKind::MatMul,
                        .infer = infer_gates,
                        .flops = recurrent_flops});

REGISTER_OP(LSTMStepsGrad, {.domain = "com.microsoft",
                            .inputs = {"gates", "cells", "r", "dy?", "dy_h?", "dy_c?", "initial_c?",
                                       "sequence_lens?"},
                            .outputs = {"dpre", "dinitial_h", "dinitial_c"},
                            .attrs = {{"layout", 0}, {"reverse", 0}},
                            .kind = OpKind::MatMul,
                            .infer = infer_grad,
                            .flops = recurrent_grad_flops});

}  // namespace
}  // namespace ortmodule
