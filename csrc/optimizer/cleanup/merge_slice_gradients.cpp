// The gradient of x[a:b] is a zero tensor that contains dy, so the gradient of a tensor cut into n
// slices is a sum of n tensors of full size. If the slices do not overlap, the sum is a Concat. The
// order of additions per element stays, only additions of exact zeros are dropped.

#include <algorithm>
#include <unordered_set>

#include "ops/emit.h"
#include "optimizer/cleanup/cleanup.h"
#include "optimizer/edit.h"

namespace ortmodule {
namespace {

// A sum whose only reader is the next sum.
bool is_inner_sum(const Value& value, const Value& sum) {
  const Node* node = value.producer();
  return node && node->op == "Add" && node->region == sum.producer()->region &&
         value.uses().size() == 1 && !value.is_graph_output() && value.dims == sum.dims &&
         value.dtype == sum.dtype;
}

bool is_piece(const Value& value, const Value& sum) {
  const Node* node = value.producer();
  return node && node->op == "SliceGrad" && value.uses().size() == 1 && !value.is_graph_output() &&
         value.dims == sum.dims && node->attrs.dim("step") == DimExpr(1);
}

// The addends of a tree of sums: gradients of slices, and other values. A subtree without slices
// counts as one value.
struct Addends {
  std::vector<Node*> pieces;
  std::vector<Value*> others;
};

// Without recursion: a sum may have any number of addends.
Addends addends_of(Value* root) {
  std::vector<Value*> sums{root};  // each in front of those within it
  for (size_t i = 0; i < sums.size(); ++i)
    for (Value* operand : sums[i]->producer()->inputs())
      if (!is_piece(*operand, *root) && is_inner_sum(*operand, *root)) sums.push_back(operand);
  std::unordered_set<const Value*> has_pieces;
  for (auto sum = sums.rbegin(); sum != sums.rend(); ++sum)
    for (const Value* operand : (*sum)->producer()->inputs())
      if (is_piece(*operand, *root) || has_pieces.contains(operand)) has_pieces.insert(*sum);
  Addends addends;
  std::vector<Value*> open{root};
  while (!open.empty()) {
    Value* value = open.back();
    open.pop_back();
    if (is_piece(*value, *root)) {
      addends.pieces.push_back(value->producer());
    } else if (value == root || has_pieces.contains(value)) {
      open.push_back(value->producer()->input(1));
      open.push_back(value->producer()->input(0));
    } else {
      addends.others.push_back(value);
    }
  }
  return addends;
}

const DimExpr& start_of(const Node& piece) { return piece.attrs.dim("start"); }
const DimExpr& end_of(const Node& piece) { return piece.attrs.dim("end"); }

// The pieces in order of position; empty if they may overlap or the order is unknown.
std::vector<Node*> in_order(std::vector<Node*> pieces) {
  std::vector<Node*> ordered;
  DimExpr reached = 0;
  while (!pieces.empty()) {
    auto next = std::find_if(pieces.begin(), pieces.end(),
                             [&](const Node* piece) { return start_of(*piece) == reached; });
    if (next == pieces.end()) {
      const bool known =
          reached.is_constant() && std::all_of(pieces.begin(), pieces.end(), [](const Node* piece) {
            return start_of(*piece).is_constant();
          });
      if (!known) return {};
      next = std::min_element(pieces.begin(), pieces.end(), [](const Node* a, const Node* b) {
        return start_of(*a).value() < start_of(*b).value();
      });
      if (start_of(**next).value() < reached.value()) return {};
    }
    reached = end_of(**next);
    ordered.push_back(*next);
    pieces.erase(next);
  }
  return ordered;
}

bool cut_alike(const Node& a, const Node& b) {
  return a.attrs.dim("axis") == b.attrs.dim("axis") &&
         a.attrs.dims("shape") == b.attrs.dims("shape") && a.output()->dtype == b.output()->dtype;
}

Reason cannot_merge(const Addends& addends) {
  if (addends.pieces.size() < 2) return "fewer than two slices";
  if (addends.others.size() > 1)
    return str(addends.others.size(), " other addends among the slices");
  for (const Node* piece : addends.pieces)
    if (!cut_alike(*piece, *addends.pieces[0]))
      return "the slices differ in axis, source shape or type";
  if (in_order(addends.pieces).empty()) return "the slices may overlap";
  return {};
}

Value* zeros(Graph& graph, Dims shape, size_t axis, const DimExpr& size, DType dtype) {
  shape[axis] = size;
  return emit(graph, "ConstantOfShape", {}, {{"value", 0.0}, {"shape", shape}, {"dtype", dtype}});
}

void merge(Graph& graph, Node* sum, const Addends& addends) {
  Graph::Inserting here(graph, sum);
  const Node& first = *addends.pieces[0];
  const Dims& shape = first.attrs.dims("shape");
  int64_t axis = first.attrs.integer("axis");
  if (axis < 0) axis += static_cast<int64_t>(shape.size());
  const auto at = static_cast<size_t>(axis);
  const DType dtype = sum->output()->dtype;
  Values parts;
  DimExpr reached = 0;
  auto fill_to = [&](const DimExpr& position) {
    if (position == reached) return;
    parts.push_back(zeros(graph, shape, at, position - reached, dtype));
  };
  for (const Node* piece : in_order(addends.pieces)) {
    fill_to(start_of(*piece));
    parts.push_back(piece->input(0));
    reached = end_of(*piece);
  }
  fill_to(shape[at]);
  Value* merged = emit(graph, "Concat", parts, {{"axis", DimExpr(axis)}});
  if (!addends.others.empty()) merged = emit(graph, "Add", {addends.others[0], merged});
  supersede(graph, sum->output(), merged);
}

// True if `node` or a sum inside it was merged.
bool merge_inside(Graph& graph, Node* node, PassContext& context) {
  const Addends addends = addends_of(node->output());
  const Reason reason = cannot_merge(addends);
  if (!reason) {
    if (!context.take()) return false;
    merge(graph, node, addends);
    return true;
  }
  if (addends.pieces.size() < 2) return false;  // nor has a sum inside more of them
  context.reject("concat", *reason, *node, true);
  bool changed = false;
  for (Value* operand : std::vector<Value*>(node->inputs()))
    if (operand && is_inner_sum(*operand, *node->output()))
      changed = merge_inside(graph, operand->producer(), context) || changed;
  return changed;
}

bool is_outermost_sum(const Node& node) {
  if (node.op != "Add") return false;
  const Value& sum = *node.output();
  if (sum.uses().size() != 1) return true;
  const Node* reader = sum.uses()[0].node;
  return reader->op != "Add" || !is_inner_sum(sum, *reader->output());
}

}  // namespace

bool merge_slice_gradients(Graph& graph, PassContext& context) {
  std::vector<Node*> sums;
  for (Node* node : graph.node_pointers())
    if (is_outermost_sum(*node)) sums.push_back(node);
  bool changed = false;
  for (Node* sum : sums) changed = merge_inside(graph, sum, context) || changed;
  return changed;
}

}  // namespace ortmodule
