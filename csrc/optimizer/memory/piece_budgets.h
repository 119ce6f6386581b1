// One budget in bytes for the pieces of a module, between graph breaks: while one runs, the others
// hold what they keep for backward, and then their gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ortmodule {

/// What one plan of a piece takes.
struct PieceCost {
  int64_t peak_bytes = 0;
  int64_t saved_bytes = 0;     // from its forward to its backward, outputs not counted
  int64_t output_bytes = 0;    // which the next pieces, and the caller, hold
  int64_t gradient_bytes = 0;  // what its backward leaves
  double time_us = 0;
};

/// The position of the piece of each run of a forward, in the order in which they run.
using PieceRuns = std::vector<size_t>;

/// By run: what all other runs hold meanwhile, forward in this order and backward in the other.
/// `costs` is by piece.
std::vector<int64_t> held_by_others(const std::vector<PieceCost>& costs, const PieceRuns& runs);

/// The peak of a step over pieces. `costs` is by piece.
int64_t step_peak(const std::vector<PieceCost>& costs, const PieceRuns& runs);

/// By piece: which of its `choices`, ordered by their peaks, is taken, so that the step is the
/// fastest within the budget, or has the least peak where none is. All combinations are looked at
/// where they are few.
std::vector<size_t> fastest_within(const std::vector<std::vector<PieceCost>>& choices,
                                   const PieceRuns& runs, int64_t budget_bytes);

}  // namespace ortmodule
