// The saved activations (stashes) of a joint graph, and how each could be recomputed instead.
#pragma once

#include <string>
#include <vector>

#include "lower/recompute.h"

namespace ortmodule {

/// What happens to a stash. The numbers are those of a configuration element: 0 keeps it, 1
/// recomputes it, 2 recomputes it from the narrow operand of a widening cast, which is kept, 3
/// keeps it in memory of the host.
enum class Strategy : uint8_t { None = 0, Recompute = 1, Compromise = 2, Offload = 3 };

/// A subgraph that recomputes the results of its last node in backward; with `Offload` nothing is
/// recomputed.
struct RecomputeSubgraph {
  Strategy strategy = Strategy::Recompute;
  std::vector<const Node*> nodes;  // in program order; none with Offload
  /// Op types, each followed by "+". Nodes without a gradient (masks, positions) are left out, so
  /// that the id of a layer does not depend on how its mask is computed.
  std::string cluster_id;
  /// Operands that must be kept for the recomputation although backward does not read them.
  std::vector<const Value*> keep;
  /// With `Offload`: the values that go to the host. What is too small for a copy stays, and with
  /// it the scalars that an operator of torch may return in memory of the host.
  std::vector<const Value*> moved;
  /// Bytes of the stash less the bytes of `keep`.
  DimExpr saving_bytes;
  /// The configuration element of this subgraph: "BiasGelu+:1:-1".
  std::string config(int64_t count = -1) const;
};

/// The outputs of one forward node that backward reads, directly or through views.
struct Stash {
  const Node* node = nullptr;
  std::vector<const Value*> values;  // outputs of `node`
  DimExpr bytes;
  std::vector<RecomputeSubgraph> subgraphs;  // empty: `refusal` says why
  std::string refusal;                       // of recomputation
};

/// The stash's subgraph of that strategy, or null.
const RecomputeSubgraph* subgraph_of(const Stash& stash, Strategy strategy);

/// The stashes of `joint` in program order. Values that the caller receives are left out, since
/// recomputing them would free nothing.
///
/// A subgraph extends from the node through its operands up to inputs, other stashes and returned
/// values. Strategy 2 also stops at a widening cast and keeps the narrow operand of the cast.
std::vector<Stash> find_stashes(const Graph& joint);

/// Size of a value in bytes, as an expression over the symbolic input sizes.
DimExpr bytes_of(const Value& value);

}  // namespace ortmodule
