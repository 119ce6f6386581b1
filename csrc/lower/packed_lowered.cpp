#include "lower/packed_lowered.h"

#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "ops/op_def.h"

namespace ortmodule {

PackedLowered::PackedLowered(const Lowered& lowered)
    : device_(lowered.device),
      graph_(*lowered.graph),
      forward_steps_(lowered.forward_steps),
      forms_(lowered.forms),
      symbols_(lowered.symbols) {
  ORTM_ASSERT(lowered.edges.empty(), "a lowered graph with gradient edges is packed");
  std::unordered_map<const Node*, uint32_t> places;
  for (const auto& node : lowered.graph->nodes())
    places.emplace(node.get(), static_cast<uint32_t>(places.size()));
  steps_.reserve(lowered.steps.size());
  nodes_.reserve(places.size());
  for (const StepNodes& step : lowered.steps) {
    steps_.push_back({step.symbols, static_cast<uint32_t>(step.nodes.size()),
                      static_cast<uint32_t>(step.form), step.pointwise, step.reads_symbols,
                      step.op != nullptr});
    for (const Node* node : step.nodes) nodes_.push_back(places.at(node));
  }
}

std::shared_ptr<Lowered> PackedLowered::unpacked() const {
  auto lowered = std::make_shared<Lowered>();
  lowered->device = device_;
  lowered->graph = graph_.unpacked();
  lowered->forward_steps = forward_steps_;
  lowered->forms = forms_;
  lowered->symbols = symbols_;
  lowered->steps.reserve(steps_.size());
  const std::vector<Node*> nodes = lowered->graph->node_pointers();
  auto next = nodes_.begin();
  for (const Step& step : steps_) {
    StepNodes& made = lowered->steps.emplace_back();
    for (uint32_t i = 0; i < step.nodes; ++i) made.nodes.push_back(nodes[*next++]);
    made.pointwise = step.pointwise;
    made.op = step.has_op ? &op_def(made.nodes.front()->op) : nullptr;
    made.form = step.form;
    made.reads_symbols = step.reads_symbols;
    made.symbols = step.symbols;
  }
  return lowered;
}

int64_t PackedLowered::size_bytes() const {
  return graph_.size_bytes() + static_cast<int64_t>(steps_.capacity() * sizeof(Step) +
                                                    nodes_.capacity() * sizeof(uint32_t));
}

}  // namespace ortmodule
