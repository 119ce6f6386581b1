// Which values backward computes again, or fetches from the host, instead of reading saved
// activations. Decisions are data; the nodes are inserted when the joint graph is lowered.
#pragma once

#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "ir/per_value.h"

namespace ortmodule {

/// Values by their id in the joint graph. Each is a storage root (see storage_root()) and stands
/// for all its aliases; in `keep` it may be an alias, which stands for those that are made of it.
struct MemoryDecisions {
  std::vector<int> recompute;
  /// Values to save although backward does not read them: recomputation starts from them.
  std::vector<int> keep;
  /// Values to save in memory of the host.
  std::vector<int> offload = {};
  bool empty() const { return recompute.empty() && keep.empty() && offload.empty(); }
  friend bool operator==(const MemoryDecisions&, const MemoryDecisions&) = default;
};

/// The value whose memory `value` aliases: itself unless it is made by a view or an identity.
const Value* storage_root(const Value* value);
/// The value that `value` is a view of or identical to; null if it is no alias.
const Value* alias_of(const Value* value);

/// Marks the storage roots of forward values that backward reads or returns as gradients.
PerValue<bool> stashed_values(const Graph& joint);

/// Marks the storage roots of outputs: the caller holds them anyway.
PerValue<bool> returned_values(const Graph& joint);

/// `decisions`, and all stashed values that are computed from parameters alone, such as their
/// 16-bit copies: for parameters whose memory is freed between forward and backward.
MemoryDecisions with_values_of_parameters(const Graph& joint, MemoryDecisions decisions);

/// Clones the forward nodes that recompute the values in `decisions` into the backward region of
/// `joint`, whose backward nodes must be in the order in which they will run. A clone is placed
/// directly before its first reader and shared by all readers; operands that are not saved are
/// recomputed too. Nodes with effects or unrecorded random numbers are never cloned; their results
/// are saved. A value of `offload` that backward reads is copied to the host and back
/// (CopyToHost, CopyToDevice), and the copy stands for it like a clone. Returns the forward value
/// that each clone stands for.
std::unordered_map<const Value*, const Value*> insert_recomputation(
    Graph& joint, const MemoryDecisions& decisions);

/// Whether `node` is a clone that insert_recomputation() made.
bool is_recomputation(const Node& node);

}  // namespace ortmodule
