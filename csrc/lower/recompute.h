// Recomputation: decisions as data over the joint graph, and the clones they turn into when the
// graph is lowered.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "ir/per_value.h"

namespace ortmodule {

/// What backward recomputes instead of reading what forward kept. Values are named by their id in
/// the joint graph and stand for the whole storage whose root they are (see storage_root()).
struct MemoryDecisions {
  std::vector<int> recompute;
  /// Values to keep although backward did not read them: what a recomputation starts from.
  std::vector<int> keep;
  bool empty() const { return recompute.empty() && keep.empty(); }
  friend bool operator==(const MemoryDecisions&, const MemoryDecisions&) = default;
};

/// The value whose memory `value` views: itself, unless a view (or an identity) made it.
const Value* storage_root(const Value* value);
/// What `value` is a view or another name of; null if it is neither.
const Value* alias_of(const Value* value);

/// Marks the storage roots of forward values that backward reads or hands over as gradients.
PerValue<bool> stashed_values(const Graph& joint);

/// Marks the storage roots of values that the caller receives, which therefore exist anyway.
PerValue<bool> returned_values(const Graph& joint);

/// Inserts into the backward region of `joint`, whose backward nodes are in the order they will
/// run, clones of the forward nodes that recompute what `decisions` names: each directly before
/// its first reader, shared by all readers. A clone reads what is kept and otherwise clones in
/// turn; nodes with effects or unrecorded randomness are never cloned, their results are kept.
void insert_recomputation(Graph& joint, const MemoryDecisions& decisions);

/// Whether `node` is a clone that insert_recomputation() made.
bool is_recomputation(const Node& node);

}  // namespace ortmodule
