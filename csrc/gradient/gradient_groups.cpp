#include "gradient/gradient_groups.h"

#include <numeric>
#include <set>
#include <unordered_map>

namespace ortmodule {
namespace {

class Groups {
 public:
  explicit Groups(size_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), 0); }

  size_t of(size_t output) const {
    while (parent_[output] != output) output = parent_[output];
    return output;
  }

  void join(const std::set<size_t>& outputs) {
    for (const size_t output : outputs) parent_[of(output)] = of(*outputs.begin());
  }

 private:
  std::vector<size_t> parent_;
};

}  // namespace

std::vector<size_t> gradient_groups(const Graph& joint, size_t outputs) {
  Groups groups(outputs);
  std::unordered_map<const Value*, std::set<size_t>> reached_by;
  for (const GraphInput& input : joint.inputs())
    if (input.kind == InputKind::GradOutput)
      reached_by[input.value] = {static_cast<size_t>(input.index)};
  for (const auto& node : joint.nodes()) {
    if (node->region != Region::Backward) continue;
    std::set<size_t> from;
    bool reads_forward = false;
    for (const Value* input : node->inputs()) {
      if (!input || input->is_literal()) continue;
      const auto found = reached_by.find(input);
      if (found == reached_by.end()) {
        reads_forward = true;
        continue;
      }
      for (const size_t output : found->second) from.insert(groups.of(output));
    }
    if (from.empty()) continue;
    if (reads_forward) groups.join(from);
    for (const Value* output : node->outputs()) reached_by[output] = from;
  }
  std::vector<size_t> numbers(outputs);
  for (size_t k = 0; k < outputs; ++k) numbers[k] = groups.of(k);
  return numbers;
}

}  // namespace ortmodule
