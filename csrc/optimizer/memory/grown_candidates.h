// Chooses among the candidates of a search for shapes other than those that it was made for.
#pragma once

#include <functional>

#include "optimizer/memory/memory_optimizer.h"

namespace ortmodule {

/// Other shapes than those of a search, and what is known about plans for them.
struct OtherShapes {
  double growth = 1.0;  // bytes of all but gradients, relative to those of the search
  double error = 1.0;   // of expected peaks: true over expected, as shapes before showed
  int64_t budget_bytes = 0;
  /// Whether the lowered graph of these decisions exists. Making one takes longer than a plan.
  std::function<bool(const MemoryDecisions&)> is_ready;
  std::function<int64_t(const MemoryDecisions&)> peak_bytes;  // makes a plan
};

struct GrownCandidate {
  const FrontierPoint* point = nullptr;
  int64_t expected_bytes = 0;
  int64_t peak_bytes = 0;
};

/// The fastest candidate of `choice` that fits, or if none does, the one with the lowest expected
/// peak. One that is not ready is taken only if no other fits, or if it saves kLeastSaving.
GrownCandidate fastest_grown(const MemoryChoice& choice, const OtherShapes& shapes);

}  // namespace ortmodule
