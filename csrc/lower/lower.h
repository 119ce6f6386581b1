// From an optimized graph to an ordered list of steps, still for all shapes: fused ops without a
// kernel become their body, identities vanish, pointwise neighbours form groups.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "kernels/kernel.h"
#include "lower/recompute.h"

namespace ortmodule {

/// Nodes that run as one step: a pointwise group, or a single node (a view runs as no step at all).
struct StepNodes {
  std::vector<Node*> nodes;
  bool pointwise = false;
};

struct Lowered {
  Device device = Device::CPU;  // whose kernels take the steps
  std::shared_ptr<Graph> graph;
  std::vector<StepNodes> steps;  // forward steps first
  size_t forward_steps = 0;
};

/// Lowers a copy of `graph`, in which backward recomputes what `decisions` names.
Lowered lower(const Graph& graph, Device device, const MemoryDecisions& decisions = {});

/// Backward nodes with those results first that only the caller waits for; see the source.
std::vector<Node*> order_backward(const std::vector<Node*>& nodes);

/// Merges pointwise nodes with their pointwise producers of the same region and shape where the
/// program order allows it. `nodes` is in program order; groups run at one place of that order.
std::vector<StepNodes> group_pointwise(const std::vector<Node*>& nodes, Device device);

/// The same forward steps with only the backward steps that the output gradients in `arrived` (by
/// forward output index) need.
Lowered prune_lowered(const Lowered& base, const std::vector<bool>& arrived);

/// Prepares the backward pass for the case that only some output gradients arrive (`arrived` by
/// forward output index): drops what is zero, in place. Forward nodes are untouched.
void prune_absent_gradients(Graph& joint, const std::vector<bool>& arrived);

}  // namespace ortmodule
