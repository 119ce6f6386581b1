// Fuses the loss head, a linear layer whose logits ("scores") only a cross entropy reads, into
// LinearCrossEntropy, which never materializes all logits. Casts, slices of rows and flattening may
// be between the two; slices and reshapes move to the layer's input. Written as code, since these
// steps come in any order. The op is in ops/linear_cross_entropy.cpp.
#include "optimizer/loss_head.h"

#include <algorithm>

#include "ops/emit.h"
#include "ops/op_def.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr std::string_view kRule = "LinearCrossEntropy";
constexpr int64_t kLeastClasses = 1024;  // fewer logits take too little memory to matter

/// The linear layer, and the slices and reshapes of its rows before the loss.
struct LossHead {
  Value* x = nullptr;
  Value* w = nullptr;
  Value* bias = nullptr;
  bool trans_b = false;
  std::vector<const Node*> row_moves;  // the last one first
  std::vector<Node*> inside;           // nodes without readers outside the loss head
};

int64_t positive_axis(const Node& node) {
  const int64_t axis = node.attrs.integer("axis");
  return axis < 0 ? axis + static_cast<int64_t>(node.input(0)->rank()) : axis;
}

bool keeps_classes(const Node& node) {
  const Dims& from = node.input(0)->dims;
  const Dims& to = node.output()->dims;
  return !from.empty() && !to.empty() && from.back() == to.back();
}

/// Whether `node` only selects or reshapes rows.
bool moves_rows(const Node& node) {
  if (node.op == "Slice")
    return positive_axis(node) + 1 < static_cast<int64_t>(node.input(0)->rank());
  const bool reshapes = node.op == "Reshape" || node.op == "Squeeze" || node.op == "Unsqueeze";
  return reshapes && keeps_classes(node);
}

/// A cast to the computation type, in which the loss is computed anyway.
bool widens(const Node& node) {
  const DType from = node.input(0)->dtype, to = node.output()->dtype;
  return node.op == "Cast" && to == compute_dtype(from) && from != to;
}

Reason reads_alone(const Value& value) {
  if (value.is_graph_output())
    return str("the scores ", value.name, " are an output of the model; outputs= leaves them out");
  if (value.uses().size() != 1) return str("value ", value.name, " is read outside the match");
  return {};
}

Reason take_product(const Node& node, LossHead& head) {
  if (node.op == "Gemm") {
    if (node.attrs.flag("transA") || node.attrs.number("alpha") != 1.0)
      return "the product is scaled or transposed";
    if (node.input(2) && (head.bias || node.attrs.number("beta") != 1.0))
      return "there are two biases, or the bias is scaled";
    if (node.input(2)) head.bias = node.input(2);
    head.trans_b = node.attrs.flag("transB");
  } else if (node.op == "MatMul") {
    head.trans_b = false;
  } else {
    return str("the scores are computed by ", node.op, ", not by a linear layer");
  }
  head.x = node.input(0);
  head.w = node.input(1);
  if (head.w->rank() != 2) return "the weight is not a matrix";
  const Node* flip = head.w->producer();
  if (!head.trans_b && flip && flip->op == "Transpose") {
    head.w = flip->input(0);
    head.trans_b = true;
  }
  if (head.bias && head.bias->rank() != 1) return "the bias is not a vector";
  return {};
}

/// Walks from the scores up to the linear layer.
Reason find_layer(Value* scores, LossHead& head) {
  for (;;) {
    if (Reason reason = reads_alone(*scores)) return reason;
    Node* node = scores->producer();
    if (!node) return "the scores are an input of the graph";
    head.inside.push_back(node);
    if (moves_rows(*node)) {
      head.row_moves.push_back(node);
    } else if (node->op == "Add" && !head.bias && node->input(1)->rank() == 1 &&
               !node->input(1)->is_literal() && node->input(0)->dims == node->output()->dims) {
      head.bias = node->input(1);
    } else if (!widens(*node)) {
      return take_product(*node, head);
    }
    scores = node->input(0);
  }
}

Reason cannot_fuse(const Node& loss, LossHead& head) {
  const std::string reduction = loss.attrs.string("reduction");
  if (reduction == "none") return "the loss is not reduced, so its gradient scales each row";
  const Value& scores = *loss.input(0);
  if (scores.rank() != 2) return "the classes are not the last dim of the scores";
  const DimExpr& classes = scores.dims[1];
  if (!classes.is_constant()) return "the number of classes is not fixed";
  if (classes.value() < kLeastClasses)
    return str("only ", classes.value(), " classes, expected ", kLeastClasses);
  const Value& log_sum_exp = *loss.output(1);
  if (!log_sum_exp.uses().empty()) return "the log-sum-exp of the scores is read";
  if (Reason reason = find_layer(loss.input(0), head)) return reason;
  if (!head.bias) return {};
  if (head.bias->dtype != head.x->dtype)
    return str("the bias is of type ", name_of(head.bias->dtype), ", the product of ",
               name_of(head.x->dtype));
  if (head.bias->dims != Dims{classes}) return "the bias is not one number per class";
  return {};
}

/// The layer's input after the slices and reshapes, as a matrix of rows.
Value* rows_of(Graph& graph, const LossHead& head, const DimExpr& row_count) {
  Value* x = head.x;
  const DimExpr channels = x->dims.back();
  for (size_t i = head.row_moves.size(); i-- > 0;) {
    const Node& move = *head.row_moves[i];
    if (move.op == "Slice") {
      x = emit(graph, "Slice", {x}, move.attrs);
      continue;
    }
    Dims shape = move.output()->dims;
    shape.back() = channels;
    x = emit(graph, "Reshape", {x}, {{"shape", shape}});
  }
  const Dims rows{row_count, channels};
  return x->dims == rows ? x : emit(graph, "Reshape", {x}, {{"shape", rows}});
}

void fuse(Graph& graph, Node* loss, const LossHead& head) {
  Graph::Inserting here(graph, loss);
  graph.current_tag = loss->tag;
  Value* x = rows_of(graph, head, loss->input(0)->dims[0]);
  Attrs attrs = {{"ignore_index", loss->attrs.integer("ignore_index")},
                 {"reduction", loss->attrs.string("reduction")},
                 {"label_smoothing", loss->attrs.number("label_smoothing")},
                 {"transB", static_cast<int64_t>(head.trans_b)},
                 {"dtype", loss->output()->dtype}};
  const Node* fused =
      emit_node(graph, "LinearCrossEntropy", {x, head.w, head.bias, loss->input(1), loss->input(2)},
                std::move(attrs));
  graph.current_tag.clear();
  supersede(graph, loss->output(), fused->output());
}

bool fuse_loss_head(Graph& graph, PassContext& context) {
  std::vector<Node*> losses;
  for (const auto& node : graph.nodes())
    if (node->op == "SoftmaxCrossEntropyLoss") losses.push_back(node.get());
  bool changed = false;
  for (Node* loss : losses) {
    LossHead head;
    if (const Reason reason = cannot_fuse(*loss, head)) {
      context.reject(kRule, *reason, *loss, true);
      continue;
    }
    if (!context.take()) break;
    fuse(graph, loss, head);
    changed = true;
  }
  return changed;
}

/// The output of the graph among the values that `value` selects, reshapes or widens, or null.
const Value* output_among(const Value* value) {
  for (;;) {
    if (value->is_graph_output()) return value;
    const Node* node = value->producer();
    if (!node || !(moves_rows(*node) || widens(*node))) return nullptr;
    value = node->input(0);
  }
}

}  // namespace

std::vector<const Value*> returned_scores(const Graph& forward) {
  std::vector<const Value*> found;
  for (const auto& node : forward.nodes()) {
    if (node->op != "SoftmaxCrossEntropyLoss" || node->input(0)->rank() != 2) continue;
    const DimExpr& classes = node->input(0)->dims[1];
    if (!classes.is_constant() || classes.value() < kLeastClasses) continue;
    if (const Value* scores = output_among(node->input(0))) found.push_back(scores);
  }
  return found;
}

REGISTER_FUSION(fuse_loss_head, fuse_loss_head);

}  // namespace ortmodule
