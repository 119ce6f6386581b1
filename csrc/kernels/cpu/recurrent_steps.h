// What the kernels of recurrent layers share: the loop over steps with its products, forward and
// backward, for a range of the batch's rows. Rows do not depend on each other, so a thread takes
// its rows through all steps without waiting for others, and the number of threads changes no bit.
#pragma once

#include <span>

#include "kernels/cpu/packed_batch.h"
#include "kernels/cpu/packed_product.h"
#include "kernels/cpu/row_dots.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Which rows take part in which steps.
class ValidRows {
 public:
  /// Fills `table`, table_elements() of the shape, with the first row of each step of a packed
  /// batch. Throws Error if its batch sizes do not describe `rows` rows.
  ValidRows(const KernelArgs& args, const BatchOperands& at, const StepsShape& s, int64_t* table)
      : lengths_(optional_operand(args, at.lengths)), steps_(s.steps), batch_(s.batch) {
    if (!s.packed) return;
    fill_packed_starts(args.in[at.batch_sizes], s.batch,
                       args.facts.inputs[at.sequence].layout.sizes[0], table);
    starts_ = table;
  }

  bool operator()(int64_t step, int64_t row) const {
    if (starts_) return row < starts_[step + 1] - starts_[step];
    if (!lengths_.data) return true;
    return step < (lengths_.dtype == DType::Int64 ? lengths_.as<int64_t>()[row]
                                                  : lengths_.as<int32_t>()[row]);
  }
  /// The row before `last` from which on a step has no rows.
  int64_t end(int64_t step, int64_t last) const {
    return starts_ ? std::min(last, starts_[step + 1] - starts_[step]) : last;
  }
  /// The first row of each step of a packed batch; null for others.
  const int64_t* starts() const { return starts_; }

  /// body(first, last) on ranges of rows with similar numbers of steps, in parallel.
  template <class Body>
  void for_ranges(const KernelArgs& args, const StepsShape& s, const Body& body) const {
    if (!starts_) return parallel_ranges(args.context, batch_, s.grain(), body);
    const auto run = [&](int64_t begin, int64_t end) {
      const int64_t first = row_at(begin), last = row_at(end);
      if (first < last) body(first, last);
    };
    parallel_ranges(args.context, starts_[steps_], s.packed_grain(), run);
  }

 private:
  /// The least row whose predecessors have this many steps together.
  int64_t row_at(int64_t count) const {
    int64_t first = 0, last = batch_;
    while (first < last) {
      const int64_t row = (first + last) / 2;
      int64_t before = 0;
      for (int64_t step = 0; step < steps_; ++step) before += end(step, row);
      if (before >= count)
        last = row;
      else
        first = row + 1;
    }
    return first;
  }

  TensorView lengths_;
  int64_t steps_, batch_;
  const int64_t* starts_ = nullptr;
};

/// A tensor [steps, batch, width], [batch, steps, width] if `batch_first`, or packed; the width is
/// dense.
template <class T>
struct StepRows {
  T* data = nullptr;
  const int64_t* starts = nullptr;
  int64_t step_stride = 0, row_stride = 0;

  StepRows(const TensorView& x, const StepsShape& s, const ValidRows& valid)
      : data(x.as<T>()), starts(valid.starts()) {
    if (!x.data) return;
    step_stride = s.packed ? x.strides[0] : x.strides[s.batch_first ? 1 : 0];
    row_stride = s.packed ? x.strides[0] : x.strides[s.batch_first ? 0 : 1];
  }
  explicit operator bool() const { return data != nullptr; }
  T* at(int64_t step, int64_t row) const {
    return data + (starts ? starts[step] : step) * step_stride + row * row_stride;
  }
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
  int64_t* take_table(const StepsShape& s) {
    constexpr int64_t each = sizeof(int64_t) / sizeof(C);
    return reinterpret_cast<int64_t*>(take(s.table_elements() * each));
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

/// Whether the recurrent weights are read as they lie: packing them takes as long as several
/// products with a single state, and a layer that hears one step at a time would do it in each run.
template <class T>
bool reads_weights_in_place(const StepsShape& s) {
  constexpr int64_t kFewStates = 16;
  return std::is_same_v<T, float> && s.steps * s.batch <= kFewStates;
}

/// The scratch of a forward kernel.
template <class C>
struct ForwardScratch {
  StridedMatrix<const C> in_place;  // recurrent weights that are not packed
  C *weights, *sums, *state, *cell, *bias;
  C *projection = nullptr, *unprojected = nullptr, *projected = nullptr;
  int64_t* table;
  Scratch<C> scratch;

  ForwardScratch(const StepsShape& s, int64_t at_once, bool packs, void* memory) : scratch(memory) {
    const PackedProduct<C> product(s.state, s.gates);
    weights = scratch.take(packs ? product.packed_elements() : 0);
    sums = scratch.take(at_once * s.batch * product.row_elements());
    state = scratch.take(at_once * s.batch * s.state);
    cell = scratch.take(s.batch * s.hidden);
    bias = scratch.take(2 * s.gates);
    table = scratch.take_table(s);
    if (!s.projected) return;
    const PackedProduct<C> projecting(s.hidden, s.state);
    projection = scratch.take(projecting.packed_elements());
    unprojected = scratch.take(s.batch * s.hidden);
    projected = scratch.take(s.batch * projecting.row_elements());
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

/// Packs the transposed recurrent weights [gates, hidden], so that a state times them gives gates,
/// or keeps where they lie.
template <class C, class T>
void pack_recurrent(const StepsShape& s, const TensorView& r, ForwardScratch<C>& at) {
  const StridedMatrix<const T> weights{r.as<T>(), s.gates, s.state, r.strides[0], 1};
  if constexpr (std::is_same_v<T, float>)
    if (reads_weights_in_place<T>(s)) {
      at.in_place = weights;
      return;
    }
  PackedProduct<C>(s.state, s.gates).pack(weights.transposed(), at.weights);
}

/// sums [rows, gates] = states [rows, hidden] times the transposed recurrent weights; rows of sums
/// are whole vectors apart.
template <class C>
void multiply_states(const StepsShape& s, const ForwardScratch<C>& at, const C* states,
                     int64_t rows, C* sums) {
  const PackedProduct<C> packed(s.state, s.gates);
  if constexpr (std::is_same_v<C, float>)
    if (const StridedMatrix<const float>& w = at.in_place; w.data)
      return multiply_rows(states, rows, w.data, w.row_stride, s.gates, s.state, sums,
                           packed.row_elements());
  packed.run(states, s.state, rows, at.weights, sums);
}

/// Runs forward steps of rows [first, last): body(step, row, sums, state), where `sums` is the
/// state before the step times the recurrent weights and `state` becomes the one after it;
/// pad(step, row) behind the end of a row; after(step, first, end) when the rows are done.
template <class C, class Body, class Pad, class After>
void run_forward(const StepsShape& s, const ValidRows& valid, const ForwardScratch<C>& at,
                 int64_t first, int64_t last, const Body& body, const Pad& pad,
                 const After& after) {
  const int64_t width = PackedProduct<C>(s.state, s.gates).row_elements();
  for (int64_t i = 0; i < s.steps; ++i) {
    const int64_t step = s.step(i), end = valid.end(step, last);
    multiply_states(s, at, at.state + first * s.state, end - first, at.sums + first * width);
    for (int64_t row = first; row < end; ++row) {
      if (valid(step, row))
        body(step, row, at.sums + row * width, at.state + row * s.state);
      else
        pad(step, row);
    }
    after(step, first, end);
  }
}
template <class C, class Body, class Pad>
void run_forward(const StepsShape& s, const ValidRows& valid, const ForwardScratch<C>& at,
                 int64_t first, int64_t last, const Body& body, const Pad& pad) {
  run_forward(s, valid, at, first, last, body, pad, [](int64_t, int64_t, int64_t) {});
}

/// The state before a step, from the saved states; null where that is zero.
template <class T>
const T* previous_state(const StepsShape& s, const ValidRows& valid, const StepRows<const T>& y,
                        const TensorView& initial, int64_t step, int64_t row) {
  const int64_t before = s.reverse ? step + 1 : step - 1;
  if (before < 0 || before >= s.steps || !valid(before, row)) return row_of<T>(initial, row);
  return y.at(before, row);
}

/// The same sums for all steps from the saved states `y`, several steps by one product; body(step,
/// row, sums).
template <class C, class T, class Body, class Pad>
void run_again(const StepsShape& s, const ValidRows& valid, const ForwardScratch<C>& at,
               const StepRows<const T>& y, const TensorView& initial, int64_t first, int64_t last,
               const Body& body, const Pad& pad) {
  const int64_t width = PackedProduct<C>(s.state, s.gates).row_elements();
  const int64_t most = steps_at_once(s);
  C* states = at.state + first * most * s.state;
  C* sums = at.sums + first * most * width;
  for (int64_t i = 0; i < s.steps; i += most) {
    const auto for_rows = [&](const auto& visit) {
      int64_t count = 0;
      for (int64_t k = i; k < std::min(i + most, s.steps); ++k)
        for (int64_t row = first; row < valid.end(s.step(k), last); ++row)
          visit(s.step(k), row, count++);
      return count;
    };
    const int64_t count = for_rows([&](int64_t step, int64_t row, int64_t place) {
      load_row(previous_state(s, valid, y, initial, step, row), s.state, states + place * s.state);
    });
    multiply_states(s, at, states, count, sums);
    for_rows([&](int64_t step, int64_t row, int64_t place) {
      if (valid(step, row))
        body(step, row, sums + place * width);
      else
        pad(step, row);
    });
  }
}

/// The scratch of a gradient kernel. `carry` is the gradient of the state that later steps gave.
template <class C>
struct BackwardScratch {
  C *weights, *gates, *back, *carry, *cell, *rows;
  C *projection = nullptr, *unprojected = nullptr;
  int64_t* table;
  Scratch<C> scratch;

  BackwardScratch(const StepsShape& s, void* memory) : scratch(memory) {
    const PackedProduct<C> product(s.gates, s.state);
    weights = scratch.take(product.packed_elements());
    gates = scratch.take(s.batch * s.gates);
    back = scratch.take(s.batch * product.row_elements());
    carry = scratch.take(s.batch * s.state);
    cell = scratch.take(s.batch * s.hidden);
    rows = scratch.take(s.batch * 2 * s.gates);
    table = scratch.take_table(s);
    if (!s.projected) return;
    const PackedProduct<C> projecting(s.state, s.hidden);
    projection = scratch.take(projecting.packed_elements());
    unprojected = scratch.take(s.batch * projecting.row_elements());
  }
};

/// Runs the steps of rows [first, last) backward: before(step, first, end); body(step, row, dgates,
/// carry) turns the gradient `carry` of the state, without dy, into that of the gates, and into
/// what reaches the state before the step directly; pad(step, row) behind the end of a row.
template <class C, class Before, class Body, class Pad>
void run_backward(const StepsShape& s, const ValidRows& valid, const BackwardScratch<C>& at,
                  int64_t first, int64_t last, const Before& before, const Body& body,
                  const Pad& pad) {
  const PackedProduct<C> product(s.gates, s.state);
  const int64_t width = product.row_elements();
  for (int64_t i = s.steps; i-- > 0;) {
    const int64_t step = s.step(i), end = valid.end(step, last);
    before(step, first, end);
    for (int64_t row = first; row < end; ++row) {
      C* gates = at.gates + row * s.gates;
      if (valid(step, row)) {
        body(step, row, gates, at.carry + row * s.state);
      } else {
        std::fill_n(gates, s.gates, C(0));
        pad(step, row);
      }
    }
    product.run(at.gates + first * s.gates, s.gates, end - first, at.weights,
                at.back + first * width);
    for (int64_t row = first; row < end; ++row) {
      if (!valid(step, row)) continue;
      C* carry = at.carry + row * s.state;
      const C* back = at.back + row * width;
      ORTM_SIMD
      for (int64_t j = 0; j < s.state; ++j) carry[j] += back[j];
    }
  }
}
template <class C, class Body, class Pad>
void run_backward(const StepsShape& s, const ValidRows& valid, const BackwardScratch<C>& at,
                  int64_t first, int64_t last, const Body& body, const Pad& pad) {
  run_backward(
      s, valid, at, first, last, [](int64_t, int64_t, int64_t) {}, body, pad);
}

/// Packs the recurrent weights, so that the gradient of gates times them gives that of the state.
template <class C, class T>
void pack_recurrent_back(const StepsShape& s, const TensorView& r, C* to) {
  PackedProduct<C>(s.gates, s.state)
      .pack(StridedMatrix<const T>{r.as<T>(), s.gates, s.state, r.strides[0], 1}, to);
}

/// Operands that the forward kernels have in common.
enum Operand : size_t { kPre, kWeights, kInputBias, kRecurrentBias };

/// Scratch of a forward kernel, of one that computes gates again, and of a gradient.
template <BatchOperands operands>
size_t forward_bytes(const StepFacts& facts) {
  return dispatch_float(facts.inputs[0].dtype, [&]<class T> {
    const StepsShape s(facts, operands);
    const bool packs = !reads_weights_in_place<T>(s);
    return ForwardScratch<ComputeOf<T>>(s, 1, packs, nullptr).scratch.bytes();
  });
}
template <BatchOperands operands>
size_t gates_bytes(const StepFacts& facts) {
  return dispatch_float(facts.inputs[0].dtype, [&]<class T> {
    const StepsShape s(facts, operands);
    const bool packs = !reads_weights_in_place<T>(s);
    return ForwardScratch<ComputeOf<T>>(s, steps_at_once(s), packs, nullptr).scratch.bytes();
  });
}
template <BatchOperands operands>
size_t gradient_bytes(const StepFacts& facts) {
  return dispatch_float(facts.inputs[0].dtype, [&]<class T> {
    return BackwardScratch<ComputeOf<T>>(StepsShape(facts, operands), nullptr).scratch.bytes();
  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
