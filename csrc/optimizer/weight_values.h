// Values that depend on the weights of a model alone, which a session can compute once.
#pragma once

#include <unordered_map>

#include "ir/graph.h"

namespace ortmodule {

class WeightValues {
 public:
  /// Weights are the constant inputs of `graph`.
  explicit WeightValues(const Graph& graph);

  /// Whether the value is a weight or depends on weights and literals alone, has fixed sizes, and
  /// takes at most 5 % more memory than the weights that it comes from, or at most 64 KiB.
  bool contains(const Value* value) const { return known_.count(value) != 0; }
  /// Whether it also takes arithmetic or a copy: it is neither a weight nor a view of one.
  bool is_computed(const Value* value) const;
  /// Looks at a node that was added to the graph.
  void visit(const Node& node);

 private:
  struct Known {
    int64_t source_bytes = 0;  // of the weights
    bool computed = false;     // not only a view of them
  };
  std::unordered_map<const Value*, Known> known_;
};

}  // namespace ortmodule
