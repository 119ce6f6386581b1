// A lowered graph that waits for a call of new sizes, in a fiftieth of its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/packed_bytes.h"
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
  Device device_;
  PackedGraph graph_;
  PackedBytes steps_;
  size_t forward_steps_;
  size_t forms_;
  std::vector<std::string> symbols_;
};

}  // namespace ortmodule
