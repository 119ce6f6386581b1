#include "plan/edge_layouts.h"

#include <string>

namespace ortmodule {

EdgeLayouts::EdgeLayouts(const Lowered& lowered, const PerValue<TensorId>& tensors) {
  if (lowered.edges.empty()) return;
  std::unordered_map<std::string, const Value*> by_name;
  for (const Value* value : lowered.graph->values()) by_name.emplace(value->name, value);
  for (const auto& [edge, value] : lowered.edges) {
    std::string name = value;
    for (auto next = lowered.replaced.find(name); next != lowered.replaced.end();
         next = lowered.replaced.find(name))
      name = next->second;
    const auto input = by_name.find(edge);
    const auto stands_for = by_name.find(name);
    if (input == by_name.end() || stands_for == by_name.end()) continue;
    edges_[stands_for->second].push_back(tensors[input->second]);
  }
}

void EdgeLayouts::found(const Value* value, const Layout& layout, Plan& plan) const {
  const auto edges = edges_.find(value);
  if (edges == edges_.end() || !is_dense(layout)) return;
  for (TensorId edge : edges->second) plan.tensors[edge].layout.strides = layout.strides;
}

}  // namespace ortmodule
