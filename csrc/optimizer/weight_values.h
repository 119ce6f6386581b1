// Values that depend on the weights of a model alone, which a session can compute once.
#pragma once

#include <unordered_map>

#include "ir/graph.h"

namespace ortmodule {

class WeightValues {
 public:
  static constexpr int64_t kTableBytes = 2 << 20;

  /// Weights are the constant inputs of `graph`. Tables that together take more than `table_bytes`
  /// are none.
  explicit WeightValues(const Graph& graph, int64_t table_bytes = kTableBytes);

  /// Whether the value is a weight or depends on weights and literals alone, has fixed sizes, and
  /// takes at most 5 % more memory than the weights that it comes from, or at most 64 KiB, or is a
  /// table: something larger, such as a filter, computed from weights of at most 8 KiB.
  bool contains(const Value* value) const;
  /// Whether it also takes arithmetic or a copy: it is neither a weight nor a view of one.
  bool is_computed(const Value* value) const;
  /// Whether it is computed and the rest of the graph reads it.
  bool is_result(const Value& value) const;
  /// Looks at a node that was added to the graph.
  void visit(const Node& node);

 private:
  struct Known {
    int64_t source_bytes = 0;   // of the weights, each time that it is read
    int64_t largest_bytes = 0;  // of one of them
    bool computed = false;      // not only a view of them
    bool fits = false;          // else it is too large to be kept, but what comes of it may not be
  };

  void visit_all(const Graph& graph);
  int64_t bytes_of_tables(const Graph& graph) const;

  int64_t table_bytes_;
  /// What depends on weights and literals alone.
  std::unordered_map<const Value*, Known> known_;
};

}  // namespace ortmodule
