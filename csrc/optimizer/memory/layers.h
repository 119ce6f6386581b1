// Finds layers as repeated node sequences of the forward region, cut where the fewest bytes cross,
// or, where nothing repeats, as the modules of a numbered list (nn.ModuleList, nn.Sequential).
// The values that cross (in a transformer, the residual stream) are what per-layer recomputation
// keeps.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace ortmodule {

/// A group of repeated layers: those of an encoder, of a decoder, the blocks of a ResNet stage.
struct LayerGroup {
  size_t count = 0;
  /// First node of each layer, in program order. The first layer may begin before the first node
  /// here if its start differs from that of the others.
  std::vector<const Node*> starts;
  /// Storage roots of the values that cross the layer boundaries.
  std::vector<const Value*> boundaries;
};

struct Layers {
  std::vector<LayerGroup> groups;  // in program order
  size_t count() const;            // of layers in all groups
};

/// Finds the layers in the forward region, for the sizes of one signature. A value counts as
/// crossing if a gradient flows through it and it depends on the module's arguments, except for
/// values that all layers share (masks, encoder states, position biases).
Layers find_layers(const Graph& joint, const SymbolValues& sizes);

}  // namespace ortmodule
