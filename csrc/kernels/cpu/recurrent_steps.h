// What the kernels of recurrent layers share: the loop over steps with its products, forward and
// backward, for a range of the batch's rows. Rows do not depend on each other, so a thread takes
// its rows through all steps without waiting for others, and the number of threads changes no bit.
#pragma once

#include <span>

#include "kernels/cpu/packed_product.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// The operand at a position; without data if it is absent.
inline TensorView optional_operand(const KernelArgs& args, size_t i) {
  return i < args.in.size() ? args.in[i] : TensorView{};
}

/// A tensor [steps, batch, width], or [batch, steps, width] if `batch_first`; the width is dense.
template <class T>
struct StepRows {
  T* data = nullptr;
  int64_t step_stride = 0, row_stride = 0;

  StepRows(const TensorView& x, bool batch_first)
      : data(x.as<T>()),
        step_stride(x.data ? x.strides[batch_first ? 1 : 0] : 0),
        row_stride(x.data ? x.strides[batch_first ? 0 : 1] : 0) {}
  explicit operator bool() const { return data != nullptr; }
  T* at(int64_t step, int64_t row) const { return data + step * step_stride + row * row_stride; }
};

/// Sizes of one direction of a layer.
struct StepsShape {
  int64_t steps = 0, batch = 0, hidden = 0, gates = 0;  // gates: rows of the recurrent weights
  bool batch_first = false, reverse = false;

  /// Of operand `sequence` and the recurrent weights, operand `weights`.
  StepsShape(const StepFacts& facts, size_t sequence, size_t weights)
      : batch_first(facts.node().attrs.flag("layout")),
        reverse(facts.node().attrs.flag("reverse")) {
    const Sizes& x = facts.inputs[sequence].layout.sizes;
    const Sizes& r = facts.inputs[weights].layout.sizes;
    steps = x[batch_first ? 1 : 0];
    batch = x[batch_first ? 0 : 1];
    gates = r[0];
    hidden = r[1];
  }

  int64_t step(int64_t i) const { return reverse ? steps - 1 - i : i; }
  /// Rows worth a thread.
  int64_t grain() const {
    return std::max<int64_t>(1, (int64_t{1} << 20) / std::max<int64_t>(steps * gates * hidden, 1));
  }
};

/// The number of valid steps of each row.
class RowLengths {
 public:
  RowLengths(const TensorView& lengths, int64_t steps) : lengths_(lengths), steps_(steps) {}
  int64_t operator[](int64_t row) const {
    if (!lengths_.data) return steps_;
    return lengths_.dtype == DType::Int64 ? lengths_.as<int64_t>()[row]
                                          : lengths_.as<int32_t>()[row];
  }

 private:
  TensorView lengths_;
  int64_t steps_;
};

/// Takes parts of a workspace, each on cache lines of its own; without memory it counts bytes.
template <class C>
class Scratch {
 public:
  explicit Scratch(void* memory) : memory_(static_cast<C*>(memory)) {}
  C* take(int64_t count) {
    C* at = memory_ ? memory_ + end_ : nullptr;
    const int64_t line = 64 / static_cast<int64_t>(sizeof(C));
    end_ += ceil_div(count, line) * line;
    return at;
  }
  size_t bytes() const { return static_cast<size_t>(end_) * sizeof(C); }

 private:
  C* memory_;
  int64_t end_ = 0;
};

/// Steps computed by one product when all earlier states are known.
inline int64_t steps_at_once(const StepsShape& s) {
  return std::clamp<int64_t>(64 / std::max<int64_t>(s.batch, 1), 1, 16);
}

/// The scratch of a forward kernel.
template <class C>
struct ForwardScratch {
  C *weights, *sums, *state, *cell, *bias;
  Scratch<C> scratch;

  ForwardScratch(const StepsShape& s, int64_t at_once, void* memory) : scratch(memory) {
    const PackedProduct<C> product(s.hidden, s.gates);
    weights = scratch.take(product.packed_elements());
    sums = scratch.take(at_once * s.batch * product.row_elements());
    state = scratch.take(at_once * s.batch * s.hidden);
    cell = scratch.take(s.batch * s.hidden);
    bias = scratch.take(2 * s.gates);
  }
};

/// row = a row of `from`, or zeros if it has no data.
template <class C, class T>
void load_row(const T* from, int64_t count, C* row) {
  if (from) {
    ORTM_SIMD
    for (int64_t j = 0; j < count; ++j) row[j] = computed(from[j]);
  } else {
    std::fill_n(row, count, C(0));
  }
}
template <class T, class C>
void round_row(const C* row, int64_t count, T* to) {
  ORTM_SIMD
  for (int64_t j = 0; j < count; ++j) to[j] = stored<T>(row[j]);
}

/// Row `row` of a matrix with dense rows; null without one.
template <class T>
const T* row_of(const TensorView& x, int64_t row) {
  return x.data ? x.as<T>() + row * x.strides[0] : nullptr;
}

/// x = sigmoid(x), x = tanh(x).
inline void apply_sigmoid(float* x, int64_t count) {
  map_vectors([](FloatVec v) { return sigmoid(v); }, count, x, x);
}
inline void apply_sigmoid(double* x, int64_t count) {
  for (int64_t j = 0; j < count; ++j) x[j] = sigmoid(x[j]);
}
inline void apply_tanh(float* x, int64_t count) {
  map_vectors([](FloatVec v) { return fast_tanh(v); }, count, x, x);
}
inline void apply_tanh(double* x, int64_t count) {
  for (int64_t j = 0; j < count; ++j) x[j] = std::tanh(x[j]);
}

/// Packs the transposed recurrent weights [gates, hidden], so that a state times them gives gates.
template <class C, class T>
void pack_recurrent(const StepsShape& s, const TensorView& r, C* to) {
  const StridedMatrix<const T> weights{r.as<T>(), s.gates, s.hidden, r.strides[0], 1};
  PackedProduct<C>(s.hidden, s.gates).pack(weights.transposed(), to);
}

/// Runs forward steps of rows [first, last): body(step, row, sums, state), where `sums` is the
/// state before the step times the recurrent weights and `state` becomes the one after it;
/// pad(step, row) behind the end of a row.
template <class C, class Body, class Pad>
void run_forward(const StepsShape& s, const RowLengths& lengths, const ForwardScratch<C>& at,
                 int64_t first, int64_t last, const Body& body, const Pad& pad) {
  const PackedProduct<C> product(s.hidden, s.gates);
  const int64_t width = product.row_elements();
  for (int64_t i = 0; i < s.steps; ++i) {
    const int64_t step = s.step(i);
    product.run(at.state + first * s.hidden, s.hidden, last - first, at.weights,
                at.sums + first * width);
    for (int64_t row = first; row < last; ++row) {
      if (step < lengths[row])
        body(step, row, at.sums + row * width, at.state + row * s.hidden);
      else
        pad(step, row);
    }
  }
}

/// The state before a step, from the saved states; null where that is zero.
template <class T>
const T* previous_state(const StepsShape& s, const RowLengths& lengths, const StepRows<const T>& y,
                        const TensorView& initial, int64_t step, int64_t row) {
  const int64_t before = s.reverse ? step + 1 : step - 1;
  if (before < 0 || before >= lengths[row]) return row_of<T>(initial, row);
  return y.at(before, row);
}

/// The same sums for all steps from the saved states `y`, several steps by one product; body(step,
/// row, sums).
template <class C, class T, class Body, class Pad>
void run_again(const StepsShape& s, const RowLengths& lengths, const ForwardScratch<C>& at,
               const StepRows<const T>& y, const TensorView& initial, int64_t first, int64_t last,
               const Body& body, const Pad& pad) {
  const PackedProduct<C> product(s.hidden, s.gates);
  const int64_t width = product.row_elements(), most = steps_at_once(s), rows = last - first;
  C* states = at.state + first * most * s.hidden;
  C* sums = at.sums + first * most * width;
  for (int64_t i = 0; i < s.steps; i += most) {
    const int64_t count = std::min(most, s.steps - i);
    for (int64_t k = 0; k < count; ++k)
      for (int64_t row = 0; row < rows; ++row)
        load_row(previous_state(s, lengths, y, initial, s.step(i + k), first + row), s.hidden,
                 states + (k * rows + row) * s.hidden);
    product.run(states, s.hidden, count * rows, at.weights, sums);
    for (int64_t k = 0; k < count; ++k)
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t step = s.step(i + k);
        if (step < lengths[first + row])
          body(step, first + row, sums + (k * rows + row) * width);
        else
          pad(step, first + row);
      }
  }
}

/// The scratch of a gradient kernel. `carry` is the gradient of the state that later steps gave.
template <class C>
struct BackwardScratch {
  C *weights, *gates, *back, *carry, *cell, *rows;
  Scratch<C> scratch;

  BackwardScratch(const StepsShape& s, void* memory) : scratch(memory) {
    const PackedProduct<C> product(s.gates, s.hidden);
    weights = scratch.take(product.packed_elements());
    gates = scratch.take(s.batch * s.gates);
    back = scratch.take(s.batch * product.row_elements());
    carry = scratch.take(s.batch * s.hidden);
    cell = scratch.take(s.batch * s.hidden);
    rows = scratch.take(s.batch * 2 * s.gates);
  }
};

/// Runs the steps of rows [first, last) backward: body(step, row, dgates, carry) turns the gradient
/// `carry` of the state, without dy, into that of the gates, and into what reaches the state before
/// the step directly; pad(step, row) behind the end of a row.
template <class C, class Body, class Pad>
void run_backward(const StepsShape& s, const RowLengths& lengths, const BackwardScratch<C>& at,
                  int64_t first, int64_t last, const Body& body, const Pad& pad) {
  const PackedProduct<C> product(s.gates, s.hidden);
  const int64_t width = product.row_elements();
  for (int64_t i = s.steps; i-- > 0;) {
    const int64_t step = s.step(i);
    for (int64_t row = first; row < last; ++row) {
      C* gates = at.gates + row * s.gates;
      if (step < lengths[row]) {
        body(step, row, gates, at.carry + row * s.hidden);
      } else {
        std::fill_n(gates, s.gates, C(0));
        pad(step, row);
      }
    }
    product.run(at.gates + first * s.gates, s.gates, last - first, at.weights,
                at.back + first * width);
    for (int64_t row = first; row < last; ++row) {
      if (step >= lengths[row]) continue;
      C* carry = at.carry + row * s.hidden;
      const C* back = at.back + row * width;
      ORTM_SIMD
      for (int64_t j = 0; j < s.hidden; ++j) carry[j] += back[j];
    }
  }
}

/// Packs the recurrent weights, so that the gradient of gates times them gives that of the state.
template <class C, class T>
void pack_recurrent_back(const StepsShape& s, const TensorView& r, C* to) {
  PackedProduct<C>(s.gates, s.hidden)
      .pack(StridedMatrix<const T>{r.as<T>(), s.gates, s.hidden, r.strides[0], 1}, to);
}

/// Operands that the forward kernels have in common.
enum Operand : size_t { kPre, kWeights, kInputBias, kRecurrentBias };

/// Scratch of a forward kernel, of one that computes gates again, and of a gradient, whose operands
/// `saved` and `weights` give the sizes.
inline size_t forward_bytes(const StepFacts& facts) {
  return dispatch_float(facts.inputs[0].dtype, [&]<class T> {
    const StepsShape s(facts, kPre, kWeights);
    return ForwardScratch<ComputeOf<T>>(s, 1, nullptr).scratch.bytes();
  });
}
inline size_t gates_bytes(const StepFacts& facts) {
  return dispatch_float(facts.inputs[0].dtype, [&]<class T> {
    const StepsShape s(facts, kPre, kWeights);
    return ForwardScratch<ComputeOf<T>>(s, steps_at_once(s), nullptr).scratch.bytes();
  });
}
template <size_t saved, size_t weights>
size_t gradient_bytes(const StepFacts& facts) {
  return dispatch_float(facts.inputs[0].dtype, [&]<class T> {
    return BackwardScratch<ComputeOf<T>>(StepsShape(facts, saved, weights), nullptr)
        .scratch.bytes();
  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
