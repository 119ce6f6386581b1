// A graph as one block of compressed bytes, about a fiftieth of its size: for graphs that are kept
// for a case that may never come.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/packed_bytes.h"
#include "ir/graph.h"

namespace ortmodule {

/// Immutable. Graphs in attributes stay as they are, since copies share them.
class PackedGraph {
 public:
  explicit PackedGraph(const Graph& graph);

  /// An equal graph, node by node and with all names, to be read only: names of nodes that are
  /// added to it may repeat those that it has.
  std::unique_ptr<Graph> unpacked() const;
  /// Bytes of memory.
  int64_t size_bytes() const;

 private:
  PackedBytes bytes_;
  std::vector<DimExpr> expressions_;  // that are no numbers, each once
  std::vector<std::shared_ptr<const Graph>> bodies_;
};

}  // namespace ortmodule
