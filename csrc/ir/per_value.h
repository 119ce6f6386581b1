// A table with an entry for each value of a graph.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace ortmodule {

/// Entries for the values that the graph holds when the table is made.
template <class T>
class PerValue {
 public:
  PerValue(const Graph& graph, const T& initial)
      : entries_(static_cast<size_t>(graph.value_id_bound()), initial) {}

  typename std::vector<T>::reference operator[](const Value* value) {
    return entries_[static_cast<size_t>(value->id())];
  }
  typename std::vector<T>::const_reference operator[](const Value* value) const {
    return entries_[static_cast<size_t>(value->id())];
  }
  /// By value id; throws if there is no such value.
  typename std::vector<T>::reference at(int id) { return entries_.at(static_cast<size_t>(id)); }
  /// False for a value that was added later.
  bool contains(const Value* value) const {
    return static_cast<size_t>(value->id()) < entries_.size();
  }

 private:
  std::vector<T> entries_;
};

}  // namespace ortmodule
