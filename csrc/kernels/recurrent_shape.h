// Sizes of recurrent layers as their kernels see them, for CPU and CUDA alike.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/kernel.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// The operand at a position; without data if it is absent.
inline TensorView optional_operand(const KernelArgs& args, size_t i) {
  return i < args.in.size() ? args.in[i] : TensorView{};
}

/// Positions of the operands that describe a batch of sequences and the sizes of a layer.
struct BatchOperands {
  size_t sequence, weights, initial, lengths, batch_sizes;
  size_t projection = std::numeric_limits<size_t>::max();
};

/// Sizes of one direction of a layer. A packed batch has the rows of a step directly behind those
/// of the step before, [rows of all steps, width]; its sequences have descending lengths, so that
/// the first rows of the batch take part in a step.
struct StepsShape {
  int64_t steps = 0, batch = 0;
  int64_t state = 0, gates = 0;  // columns and rows of the recurrent weights
  int64_t hidden = 0;            // the width of a gate, and of the state unless it is projected
  bool batch_first = false, reverse = false, packed = false, projected = false;

  StepsShape(const StepFacts& facts, const BatchOperands& at)
      : batch_first(facts.node().attrs.flag("layout")),
        reverse(facts.node().attrs.flag("reverse")),
        packed(facts.inputs[at.sequence].layout.sizes.size() == 2) {
    const Sizes& x = facts.inputs[at.sequence].layout.sizes;
    const Sizes& r = facts.inputs[at.weights].layout.sizes;
    steps = packed ? facts.inputs[at.batch_sizes].layout.sizes[0] : x[batch_first ? 1 : 0];
    batch = packed ? facts.inputs[at.initial].layout.sizes[0] : x[batch_first ? 0 : 1];
    gates = r[0];
    state = r.back();
    projected =
        at.projection < facts.inputs.size() && !facts.inputs[at.projection].layout.sizes.empty();
    hidden = projected ? facts.inputs[at.projection].layout.sizes[1] : state;
  }

  int64_t step(int64_t i) const { return reverse ? steps - 1 - i : i; }
  /// Rows worth a thread.
  int64_t grain() const { return grain_of(steps); }
  /// Steps of rows worth a thread.
  int64_t packed_grain() const { return grain_of(1); }
  /// Elements of the table of a packed batch (ValidRows).
  int64_t table_elements() const { return packed ? steps + 1 : 0; }

 private:
  int64_t grain_of(int64_t count) const {
    return std::max<int64_t>(1, (int64_t{1} << 20) / std::max<int64_t>(count * gates * state, 1));
  }
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
