#include "lower/packed_lowered.h"

#include <unordered_map>
#include <utility>

#include "base/byte_pack.h"
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
  ByteWriter to;
  std::pmr::unordered_map<const Node*, uint64_t> places(&to.memory());
  for (const auto& node : lowered.graph->nodes()) places.emplace(node.get(), places.size());
  to.number(lowered.steps.size());
  for (const StepNodes& step : lowered.steps) {
    to.number(step.nodes.size());
    for (const Node* node : step.nodes) to.number(places.at(node));
    to.byte(step.pointwise);
    to.byte(step.op != nullptr);
    to.number(step.form);
    to.byte(step.reads_symbols);
    to.number(step.symbols);
  }
  steps_ = PackedBytes(to.bytes());
}

std::shared_ptr<Lowered> PackedLowered::unpacked() const {
  auto lowered = std::make_shared<Lowered>();
  lowered->device = device_;
  lowered->graph = graph_.unpacked();
  lowered->forward_steps = forward_steps_;
  lowered->forms = forms_;
  lowered->symbols = symbols_;
  const std::vector<Node*> nodes = lowered->graph->node_pointers();
  const std::string steps = steps_.unpacked();
  ByteReader from(steps);
  lowered->steps.resize(from.number());
  for (StepNodes& step : lowered->steps) {
    for (uint64_t count = from.number(); count > 0; --count)
      step.nodes.push_back(nodes[from.number()]);
    step.pointwise = from.byte<bool>();
    step.op = from.byte<bool>() ? &op_def(step.nodes.front()->op) : nullptr;
    step.form = from.number();
    step.reads_symbols = from.byte<bool>();
    step.symbols = from.number();
  }
  return lowered;
}

int64_t PackedLowered::size_bytes() const {
  return graph_.size_bytes() + static_cast<int64_t>(steps_.size_bytes());
}

}  // namespace ortmodule
