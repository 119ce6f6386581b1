// One walk from the end: a node whose outputs nobody reads goes, and with it its reads.

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
  // Not a rewrite that could be wrong, so it takes no fuel.
  context.count(erased);
  return erased > 0;
}

}  // namespace ortmodule
