// One backward walk: erasing a node can make its producers dead, which come later in the walk.

#include "optimizer/cleanup/cleanup.h"
#include "optimizer/edit.h"

namespace ortmodule {

bool eliminate_dead_code(Graph& graph, PassContext& context) {
  const std::vector<Node*> nodes = graph.node_pointers();
  int64_t erased = 0;
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    if (!is_dead(**node)) continue;
    graph.erase(*node);
    ++erased;
  }
  // Takes no fuel: fuel bisects wrong rewrites, and this cannot be one.
  context.count(erased);
  return erased > 0;
}

}  // namespace ortmodule
