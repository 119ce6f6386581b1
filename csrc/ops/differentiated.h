// Which values a gradient must reach.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "ops/op_def.h"

namespace ortmodule {

/// Whether the op has a gradient with respect to that operand.
bool flows_through(const OpDef& def, size_t operand);

/// Whether a gradient of that output reaches the operand.
bool flows_through(const OpDef& def, size_t operand, size_t output);

/// The values on a path from an input that requires a gradient, through operands that have one.
/// Grows while nodes are added.
class Differentiated {
 public:
  /// Those of the graph as it is.
  explicit Differentiated(const Graph& graph);
  /// The values on a path from `value` instead, itself among them.
  Differentiated(const Graph& graph, const Value* value);

  bool contains(const Value* value) const;
  void mark(const Value* value);
  /// Marks the outputs of a new node that an operand on the path reaches.
  void propagate(const Node& node);

 private:
  std::vector<bool> marked_;  // by value id
};

}  // namespace ortmodule
