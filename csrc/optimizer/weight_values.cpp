#include "optimizer/weight_values.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "ops/op_def.h"

namespace ortmodule {
namespace {

constexpr int64_t kSmallBytes = 64 << 10;  // may grow to this size
constexpr int64_t kTinyBytes = 8 << 10;    // may become tables

bool is_constant(const Dims& dims) {
  return std::all_of(dims.begin(), dims.end(), [](const DimExpr& d) { return d.is_constant(); });
}

int64_t bytes_of(const Value& value) {
  return product(value.dims).value() * static_cast<int64_t>(size_of(value.dtype));
}

}  // namespace

WeightValues::WeightValues(const Graph& graph, int64_t table_bytes) : table_bytes_(table_bytes) {
  visit_all(graph);
  if (bytes_of_tables(graph) <= table_bytes) return;
  table_bytes_ = 0;
  visit_all(graph);
}

void WeightValues::visit_all(const Graph& graph) {
  known_.clear();
  for (const GraphInput& input : graph.inputs()) {
    if (input.kind != InputKind::Constant) continue;
    const int64_t bytes = bytes_of(*input.value);
    known_[input.value] = {bytes, bytes, false, true};
  }
  for (const auto& node : graph.nodes()) visit(*node);
}

int64_t WeightValues::bytes_of_tables(const Graph& graph) const {
  int64_t sum = 0;
  for (const auto& node : graph.nodes())
    for (const Value* output : node->outputs())
      if (is_result(*output) && known_.at(output).largest_bytes <= kTinyBytes &&
          bytes_of(*output) > kSmallBytes)
        sum += bytes_of(*output);
  return sum;
}

bool WeightValues::contains(const Value* value) const {
  const auto known = known_.find(value);
  return known != known_.end() && known->second.fits;
}

bool WeightValues::is_result(const Value& value) const {
  if (!is_computed(&value)) return false;
  // What is too large to be kept is computed again for its readers, but not for those that are
  // kept themselves.
  std::unordered_set<const Value*> seen{&value};
  std::vector<const Value*> pending{&value};
  while (!pending.empty()) {
    const Value* read = pending.back();
    pending.pop_back();
    if (read->is_graph_output()) return true;
    for (const Use& use : read->uses())
      for (const Value* output : use.node->outputs()) {
        if (contains(output)) continue;
        if (!known_.count(output)) return true;
        if (seen.insert(output).second) pending.push_back(output);
      }
  }
  return false;
}

bool WeightValues::is_computed(const Value* value) const {
  const auto known = known_.find(value);
  return known != known_.end() && known->second.computed && known->second.fits;
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
    made.largest_bytes = std::max(made.largest_bytes, known->second.largest_bytes);
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
  const int64_t most =
      made.largest_bytes <= kTinyBytes ? std::max(table_bytes_, kSmallBytes) : kSmallBytes;
  made.fits = bytes <= std::max(made.source_bytes + made.source_bytes / 20, most);
  for (const Value* output : node.outputs()) known_[output] = made;
}

}  // namespace ortmodule
