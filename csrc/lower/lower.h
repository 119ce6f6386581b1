// Lowers an optimized graph to an ordered list of steps, still for all shapes: fused ops without a
// kernel are replaced by their bodies, identities are removed, and pointwise ops are grouped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "kernels/kernel.h"
#include "lower/recompute.h"

namespace ortmodule {

struct OpDef;

/// Nodes that run as one step: a pointwise group or a single node. A view is listed, but runs no
/// kernel.
struct StepNodes {
  std::vector<Node*> nodes;
  bool pointwise = false;
  const OpDef* op = nullptr;   // of find_forms(): the first node's
  size_t form = 0;             // of find_forms(); equal for steps that differ only in their tensors
  bool reads_symbols = false;  // of find_forms(): an attribute or a literal is symbolic
  /// Of find_symbols(): a bit for each symbol of the graph that sizes of results, attributes or
  /// literals mention; all bits where they are too many to tell.
  uint64_t symbols = ~uint64_t{0};
};

struct Lowered {
  Device device = Device::CPU;  // whose kernels run the steps
  std::shared_ptr<Graph> graph;
  std::vector<StepNodes> steps;  // forward steps first
  size_t forward_steps = 0;
  size_t forms = 0;                  // of steps
  std::vector<std::string> symbols;  // of find_symbols(): by bit
  /// Values of the graph that was lowered, by name, whose place another value has taken: bodies and
  /// identities.
  std::unordered_map<std::string, std::string> replaced;
  /// Graph inputs that are gradient edges alone, and the recomputed values that they stand for, by
  /// name in the graph that was lowered.
  std::vector<std::pair<std::string, std::string>> edges;
};

/// Lowers a copy of `graph` in which backward recomputes the values that `decisions` names.
Lowered lower(const Graph& graph, Device device, const MemoryDecisions& decisions = {});

/// Orders backward nodes so that gradients that are only returned are computed as early as
/// possible.
std::vector<Node*> order_backward(const std::vector<Node*>& nodes);
/// Moves the backward nodes of `joint` into that order, behind all others.
void sort_backward(Graph& joint);

/// Groups pointwise nodes of the same shape with their pointwise producers, where data dependencies
/// allow a group to run as one step. `nodes` are those of one region, in program order.
std::vector<StepNodes> group_pointwise(const std::vector<Node*>& nodes, Device device);

/// The backward steps that remain if only the output gradients in `arrived` (by forward output
/// index) are given. It has no forward steps: those of `base` stay valid.
Lowered prune_lowered(const Lowered& base, const std::vector<bool>& arrived);

/// Simplifies the backward pass of `joint` for the case that only some output gradients are given
/// (`arrived`, by forward output index): removes what is zero. Forward nodes stay.
void prune_absent_gradients(Graph& joint, const std::vector<bool>& arrived);

}  // namespace ortmodule
