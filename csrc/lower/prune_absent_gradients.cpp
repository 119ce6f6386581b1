// A backward value is linear in the output gradients that it depends on, so it is zero if all of
// them are absent. This holds for every op of ours; a user's own backward, which may not be linear,
// is guarded by GradientGate.
#include <algorithm>

#include "ir/per_value.h"
#include "lower/lower.h"
#include "ops/emit.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

enum class State : uint8_t { Independent, Present, Absent };

class Pruner {
 public:
  Pruner(Graph& joint, const std::vector<bool>& arrived)
      : graph_(joint), state_(joint, State::Independent) {
    for (const GraphInput& input : joint.inputs()) {
      if (input.kind != InputKind::GradOutput) continue;
      const auto index = static_cast<size_t>(input.index);
      state_[input.value] =
          index < arrived.size() && arrived[index] ? State::Present : State::Absent;
    }
  }

  void run() {
    for (Node* node : graph_.node_pointers())
      if (node->region == Region::Backward) visit(*node);
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const GraphOutput& output = graph_.outputs()[i];
      if (output.kind == OutputKind::Gradient && output.value &&
          state(output.value) == State::Absent)
        graph_.replace_output(i, nullptr);
    }
    remove_dead();
  }

 private:
  State state(const Value* value) const {
    return state_.contains(value) ? state_[value] : State::Independent;
  }

  void visit(Node& node) {
    bool present = false, absent = false;
    for (const Value* input : node.inputs()) {
      if (!input) continue;
      present = present || state(input) == State::Present;
      absent = absent || state(input) == State::Absent;
    }
    if (absent && node.op == "Add") {
      Value* kept = state(node.input(0)) == State::Absent ? node.input(1) : node.input(0);
      if (state(kept) == State::Present && kept->dims == node.output()->dims) {
        state_[node.output()] = State::Present;
        graph_.replace_all_uses(node.output(), kept);
        return;
      }
    }
    const State result = present ? State::Present : absent ? State::Absent : State::Independent;
    for (const Value* output : node.outputs()) state_[output] = result;
    if (present && absent) materialize_zeros(node);
  }

  void materialize_zeros(Node& node) {
    Graph::Inserting here(graph_, &node);
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      Value* input = node.input(i);
      if (!input || state(input) != State::Absent) continue;
      Value* zeros = emit(graph_, "ConstantOfShape", {},
                          {{"value", 0.0}, {"shape", input->dims}, {"dtype", input->dtype}});
      graph_.set_input(&node, i, zeros);
    }
  }

  void remove_dead() {
    const std::vector<Node*> nodes = graph_.node_pointers();
    for (size_t i = nodes.size(); i-- > 0;) {
      Node* node = nodes[i];
      if (node->region != Region::Backward) continue;
      const bool used = std::any_of(node->outputs().begin(), node->outputs().end(), [](Value* v) {
        return !v->uses().empty() || v->is_graph_output();
      });
      if (!used) graph_.erase(node);
    }
  }

  Graph& graph_;
  PerValue<State> state_;
};

}  // namespace

void prune_absent_gradients(Graph& joint, const std::vector<bool>& arrived) {
  Pruner(joint, arrived).run();
}

}  // namespace ortmodule
