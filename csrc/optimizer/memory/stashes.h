// What forward keeps for backward, and how each kept value could be recomputed instead.
#pragma once

#include <string>
#include <vector>

#include "lower/recompute.h"

namespace ortmodule {

/// How a stash is treated; the numbers are those of a configuration element.
enum class Strategy : uint8_t { None = 0, Recompute = 1, Compromise = 2 };

/// A way to recompute the results of one node: the subgraph that runs again, ending in the node.
struct RecomputePlan {
  Strategy strategy = Strategy::Recompute;
  std::vector<const Node*> nodes;  // in program order
  /// Op types, each followed by "+". Nodes without a gradient (masks, positions) run again as well
  /// but are not in it: the same layer has the same id however its mask was made.
  std::string cluster_id;
  /// Values that must be kept for it although backward does not read them.
  std::vector<const Value*> keep;
  /// Bytes that the plan no longer keeps, less what it newly keeps.
  DimExpr saving_bytes;
  /// What the user writes into a configuration: "BiasGelu+:1:-1".
  std::string config(int64_t count = -1) const;
};

/// The values of one forward node that backward reads, as storages: views of them count as they.
struct Stash {
  const Node* node = nullptr;
  std::vector<const Value*> values;  // outputs of `node`
  DimExpr bytes;
  std::vector<RecomputePlan> plans;  // empty: `refusal` says why
  std::string refusal;
};

/// The stash's plan by that strategy; null if there is none.
const RecomputePlan* plan_of(const Stash& stash, Strategy strategy);

/// Every stash of `joint` in program order. Values that the caller receives anyway are left out:
/// dropping them would free nothing.
///
/// A plan walks from the node towards its operands until it meets inputs, other stashes or returned
/// values, and takes everything on its way, views included. Strategy 2 stops at a widening cast and
/// keeps the cast's narrow operand.
std::vector<Stash> find_stashes(const Graph& joint);

/// Bytes of a value as an expression over the input sizes.
DimExpr bytes_of(const Value& value);

}  // namespace ortmodule
