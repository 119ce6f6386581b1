// Gradients of gradients. Where a backward pass must be differentiable (create_graph), it runs as a
// compiled piece of its own, with its own plan and autograd nodes, over what forward has saved.
// Saved activations become further outputs of the first autograd node, so that their gradients
// reach the forward pass that computed them.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "session/backward_piece.h"

namespace ortmodule::bindings {

class CompiledPiece;
struct PieceOptions;
struct RunState;

/// A backward pass of a plan, compiled.
struct DerivedPiece {
  std::shared_ptr<CompiledPiece> compiled;
  std::vector<BackwardOperand> operands;  // by graph input
  std::vector<BackwardResult> results;
  std::vector<int64_t> symbols;
};

/// The backward passes of one piece. Thread-safe.
class DerivedPieces {
 public:
  /// That of `entry`; compiles it for the first such query. Plans with the same graph share it.
  std::shared_ptr<const DerivedPiece> find(CompiledPiece& owner,
                                           const std::shared_ptr<PlanEntry>& entry,
                                           const BackwardQuery& query);
  /// All compiled pieces.
  std::vector<std::shared_ptr<CompiledPiece>> all() const;

 private:
  std::shared_ptr<const DerivedPiece> make(CompiledPiece& owner,
                                           const std::shared_ptr<PlanEntry>& entry,
                                           const BackwardQuery& query);

  struct OfEntry {
    std::weak_ptr<PlanEntry> entry;
    std::map<BackwardQuery, std::shared_ptr<const DerivedPiece>> by_query;
  };

  mutable std::mutex mutex_;
  std::map<const PlanEntry*, OfEntry> by_entry_;
  std::map<std::pair<std::string, bool>, std::shared_ptr<CompiledPiece>> by_graph_;
};

/// Whether the backward pass that runs now must go this way: it is differentiated itself, or a
/// gradient of a saved activation has arrived.
bool needs_derived(const RunState& state, const std::vector<at::Tensor>& grads);

/// Runs the backward pass of range 0's node, which is the current one, and of all later ranges.
/// `grads`: by output of that node; `saved`: its saved tensors. Returns the gradients by graph
/// input, undefined where autograd does not need them.
std::vector<at::Tensor> derived_gradients(const c10::intrusive_ptr<RunState>& state,
                                          const std::vector<at::Tensor>& grads,
                                          const std::vector<at::Tensor>& saved);

}  // namespace ortmodule::bindings
