// One direction of an Elman network as torch.nn.RNN computes it: h = tanh(pre + h r' + biases), or
// relu. Backward reads the states alone, which are always kept. PreviousStates gives the state
// before each step, which the gradient of the recurrent weights of every layer multiplies.
#include "ops/recurrent.h"
#include "ops/spelled_out.h"

namespace ortmodule {
namespace {

struct Rnn {
  enum Operand : size_t { kLengths = kInitialH + 1, kBatchSizes };
};

void infer_rnn(InferContext& c) { infer_states(c, 1, Rnn::kBatchSizes, c.input(kR).dims.back()); }

void infer_rnn_grad(InferContext& c) {
  const Value& y = c.input(0);
  c.set(0, y.dtype, y.dims);
  c.set(1, y.dtype, {batch_of(c, y, 6), y.dims.back()});
}

Grads rnn_grad(GradContext& c) {
  Attrs attrs = direction_attrs(c.attrs());
  attrs.set("relu", c.attrs().integer("relu"));
  const std::vector<Handle> back =
      c.emit_all("RNNStepsGrad",
                 {c.y(0), c.x(kR), c.dy(0), c.dy(1), c.x(Rnn::kLengths), c.x(Rnn::kBatchSizes),
                  // For the size of the batch.
                  c.x(Rnn::kBatchSizes) ? c.x(kInitialH) : Handle()},
                 attrs);
  Grads grads(7);
  grads[kPre] = back[0];
  grads[kInitialH] = back[1];
  set_weight_grads(c, grads, back[0], back[0], Rnn::kLengths);
  return grads;
}

void export_rnn(const OnnxRuleContext& c) {
  const std::vector<std::string> activations{c.attrs().flag("relu") ? "Relu" : "Tanh"};
  export_recurrent(c, {"RNN", {0}, 1, {{"activations", activations}}});
}

Values convert_rnn(TorchCall& t) {
  return emit_layer(t, recurrent_layer(t), "RNNSteps", 2, {{"relu", int64_t{t.flag("relu")}}});
}

REGISTER_OP(RNNSteps, {.domain = "com.microsoft",
                       .inputs = {"pre", "r", "input_bias?", "recurrent_bias?", "initial_h?",
                                  "sequence_lens?", "batch_sizes?"},
                       .outputs = {"y", "y_h"},
                       .attrs = {{"layout", 0}, {"reverse", 0}, {"relu", 0}},
                       .kind = OpKind::MatMul,
                       .infer = infer_rnn,
                       .grad = rnn_grad,
                       .non_differentiable = {Rnn::kLengths, Rnn::kBatchSizes},
                       .flops = recurrent_flops,
                       .always_kept = {0, 1},
                       .onnx = {export_rnn},
                       .from_torch = {{"ortmodule_py.rnn.default", convert_rnn}}});

REGISTER_OP(RNNStepsGrad,
            {.domain = "com.microsoft",
             .inputs = {"y", "r", "dy?", "dy_h?", "sequence_lens?", "batch_sizes?", "initial_h?"},
             .outputs = {"dpre", "dinitial_h"},
             .attrs = {{"layout", 0}, {"reverse", 0}, {"relu", 0}},
             .kind = OpKind::MatMul,
             .infer = infer_rnn_grad,
             .flops = recurrent_flops});

REGISTER_OP(PreviousStates, {.domain = "com.microsoft",
                             .inputs = {"y", "initial_h?", "sequence_lens?", "batch_sizes?"},
                             .outputs = {"previous"},
                             .attrs = {{"layout", 0}, {"reverse", 0}},
                             .kind = OpKind::Data,
                             .infer = infer_same_as_input});

REGISTER_ROW_AXES(recurrent_rows, "RNNSteps");

[[maybe_unused]] const bool kRnnIsSpelledOut = register_spelled_out("RNNSteps", spell_out_steps);

}  // namespace
}  // namespace ortmodule
