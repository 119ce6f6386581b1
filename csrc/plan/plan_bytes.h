// What plans and graphs take themselves, so that caches of them can be bounded.
#pragma once

#include <cstdint>

#include "ir/graph.h"
#include "plan/plan.h"

namespace ortmodule {

/// Bytes of a plan that is ready to run, about: 3,000 for each step, 1,000 for each of its nodes
/// and 400 for each tensor, and half of it again that the heap loses between its pieces (measured
/// on plans of 17 to 96 steps).
inline int64_t approximate_bytes(const Plan& plan) {
  int64_t nodes = 0;
  for (const PlannedStep& step : plan.steps) nodes += static_cast<int64_t>(step.nodes.size());
  const auto steps = static_cast<int64_t>(plan.steps.size());
  const auto tensors = static_cast<int64_t>(plan.tensors.size());
  return (3000 * steps + 1000 * nodes + 400 * tensors) * 3 / 2;
}

/// Bytes of a graph, about: 600 for each value and the part of a node that belongs to it.
inline int64_t approximate_bytes(const Graph& graph) {
  return int64_t{600} * graph.value_id_bound();
}

}  // namespace ortmodule
