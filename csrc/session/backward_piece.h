// The backward pass of a piece as a piece of its own, for gradients of gradients: a graph that the
// same stages differentiate, optimize and plan.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/exported_piece.h"
#include "session/planner.h"

namespace ortmodule {

/// Which backward pass is asked for.
struct BackwardQuery {
  std::vector<bool> arrived;         // by forward output: its gradient is given
  std::vector<bool> differentiable;  // by forward output: that gradient has a gradient itself
  /// Saved values whose gradients are given too, by their names in the joint graph.
  std::vector<std::string> hidden;
  std::vector<bool> wanted;  // by graph input: its gradient is returned
  bool training = false;     // the result is differentiated again
  friend auto operator<=>(const BackwardQuery&, const BackwardQuery&) = default;
};

/// What a graph input of a backward piece is bound to.
struct BackwardOperand {
  enum class Kind : uint8_t {
    Argument,        // of forward; `index` is the graph input
    Unsaved,         // an argument that the plan does not save; `index` is the graph input
    Changed,         // the new value of an argument that forward has changed; `index` as above
    Output,          // of forward, or a view of it; `index` is GraphOutput::index
    Saved,           // a saved activation
    Recomputed,      // what the piece recomputes; only its edge is read
    Edge,            // the edge of an argument; `index` is the graph input
    Gradient,        // of forward output `index`
    HiddenGradient,  // of BackwardQuery::hidden[index]
  };
  Kind kind = Kind::Argument;
  size_t index = 0;
  TensorId tensor;              // of the forward plan: Argument, Output, Saved
  std::string name;             // in the joint graph
  bool differentiable = false;  // forward computes it from something that requires a gradient
};

/// A gradient that a backward piece computes.
struct BackwardResult {
  size_t input = 0;  // graph input of forward
  int output = -1;   // of the backward piece, or -1:
  int operand = -1;  // it is this operand itself
};

struct BackwardPiece {
  ExportedPiece piece;
  std::vector<BackwardOperand> operands;  // by graph input of `piece`
  std::vector<BackwardResult> results;
  std::vector<int64_t> symbols;  // values of the piece's symbol arguments
};

/// The backward pass of `entry`, a plan of the optimized joint graph `joint`, as a function of the
/// values that the plan saves and the output gradients. A value that the plan does not save is
/// recomputed, directly before its first reader; its gradient is that of the value which forward
/// computed, so all plans have the same gradients. Throws Error if an op on the way has no
/// gradient, or if a value can neither be read nor recomputed.
BackwardPiece make_backward_piece(const Graph& joint, const PlanEntry& entry,
                                  const BackwardQuery& query);

}  // namespace ortmodule
