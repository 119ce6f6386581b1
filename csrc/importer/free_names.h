// Names that nodes read and do not define.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// The values from outside that a subgraph reads, those of its own subgraphs included, each once.
std::vector<std::string> free_names(const OnnxGraph& graph);

/// What nodes read, for a model that is cut many times: each cut asks what is read behind it.
class LaterReads {
 public:
  explicit LaterReads(const std::vector<OnnxNode>& nodes);
  /// The values that the nodes from `first` on read and that come from before them.
  std::vector<std::string> from(size_t first) const;

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  struct Name {
    std::string name;
    size_t last_reader = kNone, maker = kNone;  // nodes
  };
  std::vector<Name> names_;
};

}  // namespace ortmodule
