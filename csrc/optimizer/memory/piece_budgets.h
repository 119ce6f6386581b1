// Divides a budget in bytes among the pieces of a module between graph breaks. While one piece
// runs, the others hold their saved activations and later their gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace ortmodule {

/// Cost of one execution plan of a piece.
struct PieceCost {
  int64_t peak_bytes = 0;
  int64_t saved_bytes = 0;     // of saved activations, outputs not counted
  int64_t output_bytes = 0;    // held by later pieces and by the caller
  int64_t gradient_bytes = 0;  // held after its backward
  double time_us = 0;
};

/// Positions of the pieces in the order in which a forward runs them; a piece may run several
/// times.
using PieceRuns = std::vector<size_t>;

/// What a run leaves and needs outside of its piece, where parameters are sharded (FSDP2).
struct BesideRun {
  /// Of the gradients that stay after its backward. Not set: the piece's, made at its last run.
  std::optional<int64_t> gradient_bytes;
  int64_t around_bytes = 0;  // while it runs: gathered parameters, buffers of collectives
  int64_t behind_bytes = 0;  // while its gradients are reduced behind its backward; they included
};

/// By run; empty where nothing is sharded.
using BesideRuns = std::vector<BesideRun>;

/// By run: the bytes that all other runs hold while it is at its peak. Backward runs in reverse
/// order. `costs` is by piece. Error if a run's position is out of range, or `beside` has another
/// number of runs.
std::vector<int64_t> held_by_others(const std::vector<PieceCost>& costs, const PieceRuns& runs,
                                    const BesideRuns& beside = {});

/// Peak bytes of a step over all pieces. `costs` is by piece.
int64_t step_peak(const std::vector<PieceCost>& costs, const PieceRuns& runs,
                  const BesideRuns& beside = {});

/// By piece: the position of the chosen one of its `choices`, which are in order of ascending peak.
/// The step is the fastest within the budget, or has the lowest peak if none fits. Exact if there
/// are few combinations, greedy otherwise. Error if a piece has no choices.
std::vector<size_t> fastest_within(const std::vector<std::vector<PieceCost>>& choices,
                                   const PieceRuns& runs, int64_t budget_bytes,
                                   const BesideRuns& beside = {});

}  // namespace ortmodule
