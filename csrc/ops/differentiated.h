// Which values are differentiated.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "ops/op_def.h"

namespace ortmodule {

/// Whether the op is differentiable with respect to the operand.
bool flows_through(const OpDef& def, size_t operand);

/// Whether the gradient of the output contributes to that of the operand.
bool flows_through(const OpDef& def, size_t operand, size_t output);

/// The values that depend differentiably on an input that requires a gradient. Can be extended
/// while nodes are added.
class Differentiated {
 public:
  explicit Differentiated(const Graph& graph);
  /// `value` and the values that depend on it instead.
  Differentiated(const Graph& graph, const Value* value);

  bool contains(const Value* value) const;
  void mark(const Value* value);
  /// Marks the outputs of a new node that depend on a marked operand.
  void propagate(const Node& node);

 private:
  std::vector<bool> marked_;  // by value id
};

}  // namespace ortmodule
