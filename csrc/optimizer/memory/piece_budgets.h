// Divides a budget in bytes among the pieces of a module between graph breaks. While one piece
// runs, the others hold their saved activations and later their gradients.
#pragma once

#include <cstddef>
#include <cstdint>
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

/// By run: the bytes that all other runs hold while it is at its peak. Backward runs in reverse
/// order. `costs` is by piece. Error if a run's position is out of range.
std::vector<int64_t> held_by_others(const std::vector<PieceCost>& costs, const PieceRuns& runs);

/// Peak bytes of a step over all pieces. `costs` is by piece.
int64_t step_peak(const std::vector<PieceCost>& costs, const PieceRuns& runs);

/// By piece: the position of the chosen one of its `choices`, which are in order of ascending peak.
/// The step is the fastest within the budget, or has the lowest peak if none fits. Exact if there
/// are few combinations, greedy otherwise. Error if a piece has no choices.
std::vector<size_t> fastest_within(const std::vector<std::vector<PieceCost>>& choices,
                                   const PieceRuns& runs, int64_t budget_bytes);

}  // namespace ortmodule
