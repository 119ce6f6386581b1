// What LSTM, GRU and RNN layers share: types, the gradients that are products over all steps, and
// the conversion of one layer of torch. The ops compute one direction on `pre` [T, B, gates], the
// product of the input with its weights (layout 1: [B, T, gates]), so that this product, its
// gradient and its recomputation are those of any matrix product. A packed batch (torch's
// PackedSequence) is [rows of all steps, gates] with an operand `batch_sizes` [T].
#pragma once

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"

namespace ortmodule {

/// Operands that all cells have at the same positions.
enum StepsOperand : size_t { kPre, kR, kInputBias, kRecurrentBias, kInitialH };

/// Types of y [T, B, H] and y_h [B, H]; checks that the gates are `blocks` times `hidden`, which is
/// H unless the state is projected. `batch_sizes` is the position of that operand.
void infer_states(InferContext& c, int64_t blocks, size_t batch_sizes, const DimExpr& hidden);

/// `sequence` with its last dimension replaced.
Dims with_width(const Dims& sequence, const DimExpr& width);

/// The size of the batch of `sequence`; of a packed one, that of the states at operand `states`.
DimExpr batch_of(const InferContext& c, const Value& sequence, size_t states);

/// Sets the gradients of the recurrent weights and the biases, from those of the input's and of the
/// state's part of the gates. `lengths` is the position of sequence_lens; batch_sizes follow.
void set_weight_grads(GradContext& c, Grads& grads, Handle dpre, Handle drecurrent, size_t lengths);

/// Rows of a batch that is not packed: sequences and states, but for a projection at operand 8.
RowAxes recurrent_rows(const RowQuery& query);

/// A sequence as rows [T B, width]; a packed one is.
Handle as_rows(GradContext& c, Handle x);

/// Attributes `layout` and `reverse`.
Attrs direction_attrs(const Attrs& attrs);

/// Operations of the recurrent product of all steps. The sequence is operand 0; the recurrent
/// weights are operand 1, of the gradients of LSTM and GRU operand 2.
double recurrent_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&);
double recurrent_grad_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&);

/// The steps one by one, by torch's operators (`kernels/aten/recurrent_steps.cpp`): SpellOut.
Values spell_out_steps(Graph& graph, const Node& node, const Values& operands);

/// One captured layer: operands per direction, and what it gives.
struct RecurrentLayer {
  Value* x = nullptr;
  Value* batch_sizes = nullptr;  // of a packed batch
  Values states;                 // [directions, B, H] each
  Values weights;                // those of a direction, then those of the other
  bool bidirectional = false;
  bool batch_first = false;
  bool has_biases = false;
  bool projects = false;  // the last weight of a direction is nn.LSTM's weight_hr
};
RecurrentLayer recurrent_layer(TorchCall& t);

/// Emits `op` for each direction; returns y, of directions * H columns, and the last states.
Values emit_layer(TorchCall& t, const RecurrentLayer& layer, std::string_view op, size_t outputs,
                  Attrs attrs = {});

/// How ONNX writes an op: as one of its recurrent operators.
struct RecurrentForm {
  std::string_view op;        // "LSTM"
  std::vector<size_t> gates;  // in ONNX's order, by their position in torch's
  size_t states = 1;          // operands from kInitialH on, which are also the results from 1 on
  OnnxAttrs attrs = {};
};
/// Exports the standard operator, with the input's product inside where that is found. Where
/// backward reads saved gates, which ONNX does not have, a node of our domain.
void export_recurrent(const OnnxRuleContext& c, const RecurrentForm& form);

/// Exports an LSTM whose states are projected by that operand, on padded sequences, as a Scan.
void export_projected(const OnnxRuleContext& c, size_t projection);

}  // namespace ortmodule
