// Computes the values of the graph's symbols from the shapes of a call.
#pragma once

#include <vector>

#include "ir/exported_piece.h"
#include "session/plan_key.h"

namespace ortmodule {

/// Immutable, therefore thread-safe.
class SymbolBinder {
 public:
  /// `piece` must outlive the binder. Its graph may lack the last of the inputs, which bind
  /// nothing.
  SymbolBinder(const ExportedPiece& piece, size_t argument_count, const Graph& joint);

  /// The values of all symbols of the captured graph. Throws Error if a size contradicts it.
  SymbolValues bind_all(const CallShapes& call) const;
  PlanKey key_of(const CallShapes& call) const { return {call, is_planned_}; }
  bool is_key_of(const CallShapes& call, const PlanKey& key) const {
    return key.matches(call, is_planned_);
  }
  /// The signature of the plan for such a call. Leaves out symbols that no plan depends on, such as
  /// a step counter. Throws Error if a size contradicts the captured graph.
  Signature signature_of(const CallShapes& call) const;

 private:
  SymbolValues bind(const CallShapes& call, bool only_planned) const;

  const ExportedPiece& piece_;
  const size_t argument_count_;
  std::vector<bool> is_planned_;  // by symbol argument
};

}  // namespace ortmodule
