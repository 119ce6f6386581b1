// Checks a graph on numbers before a plan is made for them.
#pragma once

#include <mutex>
#include <vector>

#include "base/dim_expr.h"
#include "ir/graph.h"

namespace ortmodule {

/// The checks of one graph, by any thread.
class SizeChecks {
 public:
  /// Infers nodes again with these sizes. An import only knows that symbolic sizes may be equal; a
  /// model of others, or its feeds, may contradict that. Throws Error, which names the node.
  /// A node is passed over if it was inferred last for the same values of the symbols that it has:
  /// where a cache grows by a row in each call, few nodes depend on its length. Of nodes with the
  /// same op, attributes, types and sizes, as equal layers have, the first stands for all. The
  /// values must have the same symbols, in the same order, in all calls.
  void check(const Graph& graph, const SymbolValues& values);
  void clear();

 private:
  struct Checked {
    std::vector<size_t> symbols;  // their places among the values
    std::vector<int64_t> values;  // of these, when it passed
    bool passes = false;
    bool is_repeated = false;  // an earlier node stands for it

    bool passed(const SymbolValues& now) const;
  };

  void read(const Graph& graph, const SymbolValues& values);

  std::mutex mutex_;
  std::vector<Checked> nodes_;  // in the order of the graph
};

}  // namespace ortmodule
