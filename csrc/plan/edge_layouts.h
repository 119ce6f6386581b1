// Layouts of gradients that flow to a gradient edge: a graph input without values, which stands for
// a value that this piece recomputes (gradients of gradients).
#pragma once

#include <unordered_map>
#include <vector>

#include "lower/lower.h"
#include "plan/plan.h"

namespace ortmodule {

/// Gives each edge the layout of its value, so that gradients are laid out, and added up, as where
/// that value was saved instead.
class EdgeLayouts {
 public:
  /// `tensors`: those of the graph inputs.
  EdgeLayouts(const Lowered& lowered, const PerValue<TensorId>& tensors);

  /// To be called with the layout of each value, before gradients are planned.
  void found(const Value* value, const Layout& layout, Plan& plan) const;

 private:
  std::unordered_map<const Value*, std::vector<TensorId>> edges_;  // by the value
};

}  // namespace ortmodule
