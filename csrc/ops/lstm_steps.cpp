// One direction of an LSTM (Hochreiter and Schmidhuber 1997) as torch.nn.LSTM computes it:
//   i, f, g, o = pre + h r' + biases;  c = sigmoid(f) c + sigmoid(i) tanh(g);  h = sigmoid(o)
//   tanh(c), or its product with the transposed `projection` [P, H] (`proj_size`)
// `gates` and `cells` are what backward reads. They can be computed again from the states y by one
// product (LSTMGates); y itself is always kept, since that would run the recurrence again.
#include "ops/recurrent.h"
#include "ops/spelled_out.h"

namespace ortmodule {
namespace {

struct Lstm {
  enum Operand : size_t { kInitialC = kInitialH + 1, kLengths, kBatchSizes, kProjection };
};

/// The width of a gate: the columns of the recurrent weights, or of the projection.
DimExpr hidden_size(const InferContext& c, size_t weights, size_t projection) {
  return (c.has_input(projection) ? c.input(projection) : c.input(weights)).dims.back();
}

void infer_lstm(InferContext& c) {
  const DimExpr hidden = hidden_size(c, kR, Lstm::kProjection);
  infer_states(c, 4, Lstm::kBatchSizes, hidden);
  const Value& pre = c.input(kPre);
  c.set(2, pre.dtype, {batch_of(c, pre, kInitialH), hidden});
  c.set(3, pre.dtype, pre.dims);
  c.set(4, pre.dtype, with_width(pre.dims, hidden));
}

void infer_lstm_gates(InferContext& c) {
  c.set(0, c.input(kPre).dtype, c.input(kPre).dims);
  c.set(1, c.input(kPre).dtype, with_width(c.input(kPre).dims, hidden_size(c, kR, 9)));
}

void infer_lstm_grad(InferContext& c) {
  const Value &gates = c.input(0), &r = c.input(2);
  const DimExpr batch = batch_of(c, gates, 6);
  c.set(0, gates.dtype, gates.dims);
  c.set(1, gates.dtype, {batch, r.dims[1]});
  c.set(2, gates.dtype, {batch, hidden_size(c, 2, 9)});
  c.set(3, gates.dtype, with_width(gates.dims, r.dims[1]));
}

/// From the gradients of the projected states; the states before are o tanh(c).
Handle projection_grad(GradContext& c, Handle dprojected) {
  const Handle gates = c.y(3);
  const auto last = static_cast<int64_t>(gates.dims().size()) - 1;
  const DimExpr hidden = c.y(4).dims().back();
  const Handle output =
      c.emit("Slice", {gates},
             {{"axis", last}, {"start", DimExpr(3) * hidden}, {"end", DimExpr(4) * hidden}});
  const Handle states = output * c.emit("Tanh", {c.y(4)});
  return c.emit("MatMul", {c.transpose(as_rows(c, dprojected), {1, 0}), as_rows(c, states)});
}

Grads lstm_grad(GradContext& c) {
  const std::vector<Handle> back =
      c.emit_all("LSTMStepsGrad",
                 {c.y(3), c.y(4), c.x(kR), c.dy(0), c.dy(1), c.dy(2), c.x(Lstm::kInitialC),
                  c.x(Lstm::kLengths), c.x(Lstm::kBatchSizes), c.x(Lstm::kProjection)},
                 direction_attrs(c.attrs()));
  Grads grads(9);
  grads[kPre] = back[0];
  grads[kInitialH] = back[1];
  grads[Lstm::kInitialC] = back[2];
  set_weight_grads(c, grads, back[0], back[0], Lstm::kLengths);
  if (c.x(Lstm::kProjection) && c.needs(Lstm::kProjection))
    grads[Lstm::kProjection] = projection_grad(c, back[3]);
  return grads;
}

void export_lstm(const OnnxRuleContext& c) {
  const bool saves = c.wanted(3) || c.wanted(4),
             packed = c.has(Lstm::kLengths) || c.has(Lstm::kBatchSizes);
  if (c.has(Lstm::kProjection))
    return saves || packed ? export_custom(c, "com.microsoft")
                           : export_projected(c, Lstm::kProjection);
  export_recurrent(c, {"LSTM", {0, 3, 1, 2}, 2});
}

Values convert_lstm(TorchCall& t) { return emit_layer(t, recurrent_layer(t), "LSTMSteps", 5); }

REGISTER_OP(
    LSTMSteps,
    {.domain = "com.microsoft",
     .inputs = {"pre", "r", "input_bias?", "recurrent_bias?", "initial_h?", "initial_c?",
                "sequence_lens?", "batch_sizes?", "projection?"},
     .outputs = {"y", "y_h", "y_c", "gates", "cells"},
     .attrs = {{"layout", 0}, {"reverse", 0}},
     .kind = OpKind::MatMul,
     .infer = infer_lstm,
     .grad = lstm_grad,
     .non_differentiable = {Lstm::kLengths, Lstm::kBatchSizes},
     .flops = recurrent_flops,
     .always_kept = {0, 1, 2},
     .recompute = R"(lstm_gates (pre, r, input_bias, recurrent_bias, y, initial_h, initial_c,
                 sequence_lens, batch_sizes, projection) => (gates, cells) {
               gates, cells = LSTMGates<layout=@layout, reverse=@reverse>(pre, r, input_bias,
                   recurrent_bias, y, initial_h, initial_c, sequence_lens, batch_sizes, projection)
             })",
     .onnx = {export_lstm},
     .from_torch = {{"ortmodule_py.lstm.default", convert_lstm}}});

REGISTER_OP(LSTMGates, {.domain = "com.microsoft",
                        .inputs = {"pre", "r", "input_bias?", "recurrent_bias?", "y", "initial_h?",
                                   "initial_c?", "sequence_lens?", "batch_sizes?", "projection?"},
                        .outputs = {"gates", "cells"},
                        .attrs = {{"layout", 0}, {"reverse", 0}},
                        .kind = OpKind::MatMul,
                        .infer = infer_lstm_gates,
                        .flops = recurrent_flops});

REGISTER_OP(LSTMStepsGrad, {.domain = "com.microsoft",
                            .inputs = {"gates", "cells", "r", "dy?", "dy_h?", "dy_c?", "initial_c?",
                                       "sequence_lens?", "batch_sizes?", "projection?"},
                            .outputs = {"dpre", "dinitial_h", "dinitial_c", "dprojected"},
                            .attrs = {{"layout", 0}, {"reverse", 0}},
                            .kind = OpKind::MatMul,
                            .infer = infer_lstm_grad,
                            .flops = recurrent_grad_flops});

REGISTER_ROW_AXES(recurrent_rows, "LSTMSteps");

[[maybe_unused]] const bool kLstmIsSpelledOut = register_spelled_out("LSTMSteps", spell_out_steps);

}  // namespace
}  // namespace ortmodule
