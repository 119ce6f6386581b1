// Layers by repeated structure: runs of the forward program that repeat, cut where the fewest bytes
// cross. What crosses is the residual stream; it is what per-layer recomputation keeps.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace ortmodule {

/// One group of repeated layers: an encoder's, a decoder's, the blocks of a stage.
struct LayerGroup {
  size_t count = 0;
  /// Forward nodes at which a layer begins, in program order; the first layer may begin earlier
  /// than the first node here if its start differs from the others'.
  std::vector<const Node*> starts;
  /// Storage roots of the values that cross the starts.
  std::vector<const Value*> boundaries;
};

struct Layers {
  std::vector<LayerGroup> groups;  // in program order
  size_t count() const;
};

/// Finds repeated layers in the forward region. `sizes` weighs the values; only values that a
/// gradient flows through and that depend on the module's arguments count as crossing, and what
/// every layer shares (masks, encoder states, position biases) does not.
Layers find_layers(const Graph& joint, const SymbolValues& sizes);

}  // namespace ortmodule
