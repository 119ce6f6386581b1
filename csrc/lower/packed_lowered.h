// A lowered graph that waits for a call of new sizes, in a tenth of its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/packed_graph.h"
#include "lower/lower.h"

namespace ortmodule {

/// Of a graph without gradient edges, so `replaced` is not kept. Immutable.
class PackedLowered {
 public:
  explicit PackedLowered(const Lowered& lowered);

  std::shared_ptr<Lowered> unpacked() const;
  /// Bytes of memory.
  int64_t size_bytes() const;

 private:
  struct Step {
    uint64_t symbols = 0;
    uint32_t nodes = 0;  // how many of `nodes_`
    uint32_t form = 0;
    bool pointwise = false;
    bool reads_symbols = false;
    bool has_op = false;
  };

  Device device_;
  PackedGraph graph_;
  std::vector<Step> steps_;
  std::vector<uint32_t> nodes_;  // of all steps, by place in the graph
  size_t forward_steps_;
  size_t forms_;
  std::vector<std::string> symbols_;
};

}  // namespace ortmodule
