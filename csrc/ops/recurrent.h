// What LSTM, GRU and RNN layers share: types, the gradients that are products over all steps, and
// the conversion of one layer of torch. The ops compute one direction on `pre` [T, B, gates], the
// product of the input with its weights (layout 1: [B, T, gates]), so that this product, its
// gradient and its recomputation are those of any matrix product.
#pragma once

#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {

/// Types of y [T, B, H] and y_h [B, H], from `sequence` and the recurrent weights [gates, H] at
/// these positions; checks that the gates are `blocks` times H.
void infer_states(InferContext& c, size_t weights, int64_t blocks);

/// `sequence` with its last dimension replaced.
Dims with_width(const Dims& sequence, const DimExpr& width);

/// Sets the gradients of the operands that all cells have at the same positions: recurrent weights
/// (1), the biases (2, 3), from the gradients of the input's and of the state's part of the gates.
void set_weight_grads(GradContext& c, Grads& grads, Handle dpre, Handle drecurrent,
                      size_t initial_h, size_t lengths);

/// Attributes `layout` and `reverse`.
Attrs direction_attrs(const Attrs& attrs);

/// Operations of the recurrent product of all steps. The sequence is operand 0; the recurrent
/// weights are operand 1, of the gradients of LSTM and GRU operand 2.
double recurrent_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&);
double recurrent_grad_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&);

/// One captured layer: operands per direction, and what it gives.
struct RecurrentLayer {
  Value* x = nullptr;
  Value* lengths = nullptr;
  Values states;   // [directions, B, H] each
  Values weights;  // those of a direction, then those of the other
  bool bidirectional = false;
  bool batch_first = false;
  bool has_biases = false;
};
RecurrentLayer recurrent_layer(TorchCall& t);

/// Emits `op` for each direction; returns y [T, B, directions * H] and the last states.
Values emit_layer(TorchCall& t, const RecurrentLayer& layer, std::string_view op, size_t outputs,
                  Attrs attrs = {});

/// How ONNX writes an op: as one of its recurrent operators.
struct RecurrentForm {
  std::string_view op;        // "LSTM"
  std::vector<size_t> gates;  // in ONNX's order, by their position in torch's
  size_t states = 1;          // operands from 4 on, which are also the results from 1 on
  OnnxAttrs attrs = {};
};
/// Exports the standard operator, with the input's product inside where that is found. Where
/// backward reads saved gates, which ONNX does not have, a node of our domain.
void export_recurrent(const OnnxRuleContext& c, const RecurrentForm& form);

}  // namespace ortmodule
