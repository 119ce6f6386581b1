#include "optimizer/weight_values.h"

#include <algorithm>

#include "ops/op_def.h"

namespace ortmodule {
namespace {

constexpr int64_t kSmallBytes = 64 << 10;  // may grow to this size

bool is_constant(const Dims& dims) {
  return std::all_of(dims.begin(), dims.end(), [](const DimExpr& d) { return d.is_constant(); });
}

int64_t bytes_of(const Value& value) {
  return product(value.dims).value() * static_cast<int64_t>(size_of(value.dtype));
}

}  // namespace

WeightValues::WeightValues(const Graph& graph) {
  for (const GraphInput& input : graph.inputs())
    if (input.kind == InputKind::Constant) known_[input.value] = {bytes_of(*input.value), false};
  for (const auto& node : graph.nodes()) visit(*node);
}

bool WeightValues::is_computed(const Value* value) const {
  const auto known = known_.find(value);
  return known != known_.end() && known->second.computed;
}

void WeightValues::visit(const Node& node) {
  Known made;
  for (const Value* input : node.inputs()) {
    if (!input) continue;
    if (input->is_literal()) {
      const auto* size = std::get_if<DimExpr>(&input->literal());
      if (size && !size->is_constant()) return;
      continue;
    }
    const auto known = known_.find(input);
    if (known == known_.end()) return;
    made.source_bytes += known->second.source_bytes;
    made.computed = made.computed || known->second.computed;
  }
  const OpDef& op = op_def(node.op);
  if (made.source_bytes == 0 || op.random || is_impure(node)) return;
  if (op.kind != OpKind::View) made.computed = true;
  int64_t bytes = 0;
  for (const Value* output : node.outputs()) {
    if (!is_constant(output->dims)) return;
    bytes += bytes_of(*output);
  }
  // Packed weights have whole vectors.
  if (bytes > std::max(made.source_bytes + made.source_bytes / 20, kSmallBytes)) return;
  for (const Value* output : node.outputs()) known_[output] = made;
}

}  // namespace ortmodule
