#include "inference/check_sizes.h"

#include <unordered_map>

#include "base/error.h"
#include "ops/emit.h"
#include "ops/infer_rules.h"

namespace ortmodule {
namespace {

Dims on_numbers(const Dims& dims, const SymbolValues& values) {
  const std::vector<int64_t> sizes = evaluate(dims, values);
  return {sizes.begin(), sizes.end()};
}

}  // namespace

void check_sizes(const Graph& graph, const SymbolValues& values) {
  Graph numbers;
  std::unordered_map<const Value*, Value*> known;
  const auto value_of = [&](const Value* value) -> Value* {
    if (!value) return nullptr;
    Value*& made = known[value];
    if (made) return made;
    if (value->is_literal()) return made = numbers.literal(value->literal(), value->dtype);
    return made = numbers.add_input(value->name, value->dtype, on_numbers(value->dims, values));
  };
  for (const auto& node : graph.nodes()) {
    numbers.current_origin = node->origin;
    Values inputs;
    for (const Value* input : node->inputs()) inputs.push_back(value_of(input));
    const Node* made =
        emit_node(numbers, node->op, inputs, node->attrs.resolve(values), node->outputs().size());
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      const Dims expected = on_numbers(node->output(i)->dims, values);
      ORTM_CHECK(made->output(i)->dims == expected, "[run] ", node->op, " (", node->origin.source,
                 ") must give sizes ", dims_text(expected), ", but found ",
                 dims_text(made->output(i)->dims));
      known[node->output(i)] = made->output(i);
    }
  }
}

}  // namespace ortmodule
