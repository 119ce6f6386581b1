#include "lower/host_copies.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

namespace ortmodule {
namespace {

bool is_to_host(const Node& node) { return node.op == "CopyToHost"; }
bool is_to_device(const Node& node) { return node.op == "CopyToDevice"; }

/// The number of steps in front of the copy; nothing if no step reads it.
std::optional<size_t> place_of(const Node& copy,
                               const std::unordered_map<const Node*, size_t>& step_of) {
  if (is_to_host(copy)) {
    const auto made = step_of.find(copy.input(0)->producer());
    return made == step_of.end() ? 0 : made->second + 1;
  }
  std::optional<size_t> first;
  for (const Use& use : copy.output()->uses()) {
    const auto reader = step_of.find(use.node);
    if (reader != step_of.end()) first = std::min(first.value_or(reader->second), reader->second);
  }
  return first;
}

}  // namespace

std::vector<Node*> take_host_copies(std::vector<Node*>& nodes) {
  std::vector<Node*> copies;
  std::erase_if(nodes, [&](Node* node) {
    const bool is_copy = is_to_host(*node) || is_to_device(*node);
    if (is_copy) copies.push_back(node);
    return is_copy;
  });
  return copies;
}

void place_host_copies(std::vector<StepNodes>& steps, const std::vector<Node*>& copies) {
  if (copies.empty()) return;
  std::unordered_map<const Node*, size_t> step_of;
  for (size_t s = 0; s < steps.size(); ++s)
    for (const Node* node : steps[s].nodes) step_of[node] = s;
  std::vector<std::vector<Node*>> before(steps.size() + 1);
  for (Node* copy : copies)
    if (const auto place = place_of(*copy, step_of)) before[*place].push_back(copy);
  std::vector<StepNodes> all;
  for (size_t s = 0; s <= steps.size(); ++s) {
    for (Node* copy : before[s]) {
      all.emplace_back();
      all.back().nodes.push_back(copy);
    }
    if (s < steps.size()) all.push_back(std::move(steps[s]));
  }
  steps = std::move(all);
}

}  // namespace ortmodule
