// Add(x, GatherGrad(dy, indices)) -> GatherGrad(dy, indices, x): a tied embedding's gradient.
#include "ops/emit.h"
#include "optimizer/cleanup/cleanup.h"
#include "optimizer/edit.h"

namespace ortmodule {
namespace {

bool is_table(const Value& value) {
  return value.producer() && value.producer()->op == "GatherGrad";
}

Reason cannot_accumulate(const Value& table, const Value& rest, const Value& sum) {
  if (table.producer()->input(2)) return "the table's gradient already accumulates";
  if (table.uses().size() != 1 || table.is_graph_output())
    return "the table's gradient is read elsewhere";
  if (rest.is_literal() || rest.dtype != table.dtype || sum.dtype != table.dtype)
    return "the addends differ in type";
  if (rest.dims != table.dims) return "the addends differ in size";
  return {};
}

}  // namespace

bool accumulate_gather_gradients(Graph& graph, PassContext& context) {
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    if (node->op != "Add") continue;
    for (size_t i : {size_t{1}, size_t{0}}) {
      const Value* table = node->input(i);
      Value* rest = node->input(1 - i);
      if (!is_table(*table)) continue;
      if (const Reason why = cannot_accumulate(*table, *rest, *node->output())) {
        context.reject("accumulate", *why, *node, true);
        continue;
      }
      if (!context.take()) return changed;
      const Node* gather = table->producer();
      Graph::Inserting here(graph, node);
      Value* sum =
          emit(graph, "GatherGrad", {gather->input(0), gather->input(1), rest}, gather->attrs);
      supersede(graph, node->output(), sum);
      changed = true;
      break;
    }
  }
  return changed;
}

}  // namespace ortmodule
