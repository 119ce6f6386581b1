#include "ops/differentiated.h"

#include <algorithm>

namespace ortmodule {

bool flows_through(const OpDef& def, size_t operand) {
  const auto& blocked = def.non_differentiable;
  return std::find(blocked.begin(), blocked.end(), operand) == blocked.end();
}

bool flows_through(const OpDef& def, size_t operand, size_t output) {
  return flows_through(def, operand) && (!def.depends || def.depends(output, operand));
}

Differentiated::Differentiated(const Graph& graph) {
  for (const GraphInput& input : graph.inputs())
    if (input.requires_grad && is_differentiable(input.value->dtype)) mark(input.value);
  for (const auto& node : graph.nodes()) propagate(*node);
}

Differentiated::Differentiated(const Graph& graph, const Value* value) {
  mark(value);
  for (const auto& node : graph.nodes()) propagate(*node);
}

bool Differentiated::contains(const Value* value) const {
  const auto id = static_cast<size_t>(value->id());
  return id < marked_.size() && marked_[id];
}

void Differentiated::mark(const Value* value) {
  const auto id = static_cast<size_t>(value->id());
  if (id >= marked_.size()) marked_.resize(id + 1, false);
  marked_[id] = true;
}

void Differentiated::propagate(const Node& node) {
  const OpDef& def = op_def(node.op);
  for (size_t k = 0; k < node.outputs().size(); ++k) {
    if (!is_differentiable(node.output(k)->dtype)) continue;
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      const Value* input = node.inputs()[i];
      if (input && contains(input) && flows_through(def, i, k)) mark(node.output(k));
    }
  }
}

}  // namespace ortmodule
