// LSTMSteps, its gates computed again from the saved states (LSTMGates), and its gradient. Gates
// are in torch's order: input, forget, cell, output. Bytes moved: `pre` and all results once per
// element, the recurrent weights from the second-level cache once per step.
#include "kernels/cpu/recurrent_steps.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// Positions of operands and results; `y` is an operand of LSTMGates only.
struct Places {
  size_t initial_h, initial_c, lengths, gates, cells;
};
constexpr Places kSteps{4, 5, 6, 3, 4}, kGates{5, 6, 7, 0, 1};
constexpr size_t kSavedStates = 4;

template <class T>
class Forward {
 public:
  using C = ComputeOf<T>;

  Forward(const KernelArgs& args, const Places& places, int64_t at_once)
      : args_(args),
        places_(places),
        s_(args.facts, kPre, kWeights),
        lengths_(optional_operand(args, places.lengths), s_.steps),
        at_(s_, at_once, args.workspace),
        pre_(args.in[kPre], s_.batch_first),
        gates_(args.out[places.gates], s_.batch_first),
        cells_(args.out[places.cells], s_.batch_first) {
    pack_recurrent<C, T>(s_, args.in[kWeights], at_.weights);
    load_row(row_of<T>(optional_operand(args, kInputBias), 0), s_.gates, at_.bias);
    load_row(row_of<T>(optional_operand(args, kRecurrentBias), 0), s_.gates, at_.bias + s_.gates);
    for (int64_t j = 0; j < s_.gates; ++j) at_.bias[j] += at_.bias[s_.gates + j];
  }

  void run() {
    const StepRows<T> y(args_.out[0], s_.batch_first);
    parallel_ranges(args_.context, s_.batch, s_.grain(), [&](int64_t first, int64_t last) {
      load_initial(places_.initial_h, first, last, at_.state);
      load_initial(places_.initial_c, first, last, at_.cell);
      run_forward(
          s_, lengths_, at_, first, last,
          [&](int64_t step, int64_t row, C* sums, C* state) {
            update(step, row, sums);
            // The state that the next step reads is the rounded one, as it is saved.
            const C *tanh_cell = sums + 2 * s_.hidden, *output = sums + 3 * s_.hidden;
            ORTM_SIMD
            for (int64_t j = 0; j < s_.hidden; ++j)
              state[j] = computed(stored<T>(output[j] * tanh_cell[j]));
            if (y) round_row(state, s_.hidden, y.at(step, row));
          },
          [&](int64_t step, int64_t row) {
            pad(step, row);
            if (y) std::fill_n(y.at(step, row), s_.hidden, stored<T>(C(0)));
          });
      for (int64_t row = first; row < last; ++row) {
        keep_last(args_.out[1], row, at_.state);
        keep_last(args_.out[2], row, at_.cell);
      }
    });
  }

  void run_gates() {
    const StepRows<const T> y(args_.in[kSavedStates], s_.batch_first);
    parallel_ranges(args_.context, s_.batch, s_.grain(), [&](int64_t first, int64_t last) {
      // Not the state, which has another place here for each range of rows.
      load_initial(places_.initial_c, first, last, at_.cell);
      run_again(
          s_, lengths_, at_, y, optional_operand(args_, places_.initial_h), first, last,
          [&](int64_t step, int64_t row, C* sums) { update(step, row, sums); },
          [&](int64_t step, int64_t row) { pad(step, row); });
    });
  }

 private:
  void load_initial(size_t operand, int64_t first, int64_t last, C* rows) const {
    const TensorView initial = optional_operand(args_, operand);
    for (int64_t row = first; row < last; ++row)
      load_row(row_of<T>(initial, row), s_.hidden, rows + row * s_.hidden);
  }

  /// From the sums to the activated gates and the new cell, whose tanh replaces the cell's gate.
  void update(int64_t step, int64_t row, C* z) const {
    const int64_t n = s_.hidden;
    const T* pre = pre_.at(step, row);
    const C* bias = at_.bias;
    ORTM_SIMD
    for (int64_t j = 0; j < 4 * n; ++j) z[j] = (computed(pre[j]) + bias[j]) + z[j];
    apply_sigmoid(z, 2 * n);
    apply_tanh(z + 2 * n, n);
    apply_sigmoid(z + 3 * n, n);
    if (gates_) round_row(z, 4 * n, gates_.at(step, row));
    C *cell = at_.cell + row * n, *tanh_cell = z + 2 * n;
    ORTM_SIMD
    for (int64_t j = 0; j < n; ++j) cell[j] = z[n + j] * cell[j] + z[j] * z[2 * n + j];
    if (cells_) round_row(cell, n, cells_.at(step, row));
    std::copy_n(cell, n, tanh_cell);
    apply_tanh(tanh_cell, n);
  }

  void pad(int64_t step, int64_t row) const {
    if (gates_) std::fill_n(gates_.at(step, row), s_.gates, stored<T>(C(0)));
    if (cells_) std::fill_n(cells_.at(step, row), s_.hidden, stored<T>(C(0)));
  }

  void keep_last(const TensorView& to, int64_t row, const C* rows) const {
    if (to.data) round_row(rows + row * s_.hidden, s_.hidden, to.as<T>() + row * s_.hidden);
  }

  const KernelArgs& args_;
  const Places& places_;
  StepsShape s_;
  RowLengths lengths_;
  ForwardScratch<C> at_;
  StepRows<const T> pre_;
  StepRows<T> gates_, cells_;
};

enum Gradient : size_t { kSavedGates, kSavedCells, kR, kDy, kDyH, kDyC, kInitialC, kLengths };

template <class T>
class Backward {
 public:
  using C = ComputeOf<T>;

  explicit Backward(const KernelArgs& args)
      : args_(args),
        s_(args.facts, kSavedGates, kR),
        lengths_(optional_operand(args, kLengths), s_.steps),
        at_(s_, args.workspace),
        gates_(args.in[kSavedGates], s_.batch_first),
        cells_(args.in[kSavedCells], s_.batch_first),
        dy_(optional_operand(args, kDy), s_.batch_first),
        dpre_(args.out[0], s_.batch_first) {
    pack_recurrent_back<C, T>(s_, args.in[kR], at_.weights);
  }

  void run() {
    parallel_ranges(args_.context, s_.batch, s_.grain(), [&](int64_t first, int64_t last) {
      const TensorView dy_h = optional_operand(args_, kDyH), dy_c = optional_operand(args_, kDyC);
      for (int64_t row = first; row < last; ++row) {
        load_row(row_of<T>(dy_h, row), s_.hidden, at_.carry + row * s_.hidden);
        load_row(row_of<T>(dy_c, row), s_.hidden, at_.cell + row * s_.hidden);
      }
      run_backward(
          s_, lengths_, at_, first, last,
          [&](int64_t step, int64_t row, C* dgates, C* carry) {
            go_back(step, row, dgates, carry);
          },
          [&](int64_t step, int64_t row) {
            std::fill_n(dpre_.at(step, row), s_.gates, stored<T>(C(0)));
          });
      for (int64_t row = first; row < last; ++row) {
        give(args_.out[1], row, at_.carry);
        give(args_.out[2], row, at_.cell);
      }
    });
  }

 private:
  void go_back(int64_t step, int64_t row, C* dz, C* carry) const {
    const int64_t n = s_.hidden;
    C *gates = at_.rows + row * 2 * s_.gates, *cell = gates + 4 * n, *before = cell + n;
    C *dh = before + n, *dc = at_.cell + row * n;
    load_row(static_cast<const T*>(gates_.at(step, row)), 4 * n, gates);
    load_row(static_cast<const T*>(cells_.at(step, row)), n, cell);
    const TensorView initial = optional_operand(args_, kInitialC);
    load_row(previous_state(s_, lengths_, cells_, initial, step, row), n, before);
    load_row(dy_ ? static_cast<const T*>(dy_.at(step, row)) : nullptr, n, dh);
    apply_tanh(cell, n);
    const C *in = gates, *forget = gates + n, *candidate = gates + 2 * n, *out = gates + 3 * n;
    ORTM_SIMD
    for (int64_t j = 0; j < n; ++j) {
      const C d = dh[j] + carry[j];
      const C of_cell = dc[j] + d * out[j] * (C(1) - cell[j] * cell[j]);
      dz[j] = of_cell * candidate[j] * (in[j] * (C(1) - in[j]));
      dz[n + j] = of_cell * before[j] * (forget[j] * (C(1) - forget[j]));
      dz[2 * n + j] = of_cell * in[j] * (C(1) - candidate[j] * candidate[j]);
      dz[3 * n + j] = d * cell[j] * (out[j] * (C(1) - out[j]));
      dc[j] = of_cell * forget[j];
      carry[j] = C(0);
    }
    round_row(dz, 4 * n, dpre_.at(step, row));
  }

  void give(const TensorView& to, int64_t row, const C* rows) const {
    if (to.data) round_row(rows + row * s_.hidden, s_.hidden, to.as<T>() + row * s_.hidden);
  }

  const KernelArgs& args_;
  StepsShape s_;
  RowLengths lengths_;
  BackwardScratch<C> at_;
  StepRows<const T> gates_, cells_, dy_;
  StepRows<T> dpre_;
};

void run_steps(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { Forward<T>(args, kSteps, 1).run(); });
}
void run_gates(const KernelArgs& args) {
  const int64_t at_once = steps_at_once(StepsShape(args.facts, kPre, kWeights));
  dispatch_float(args.in[0].dtype, [&]<class T> { Forward<T>(args, kGates, at_once).run_gates(); });
}
void run_grad(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { Backward<T>(args).run(); });
}

REGISTER_CPU_KERNEL({.op = "LSTMSteps",
                     .name = "lstm_steps_cpu",
                     .dtypes = kAllFloats,
                     .run = run_steps,
                     .workspace_bytes = forward_bytes,
                     .layout = LayoutRule::InnerContiguous,
                     .leaves_out_unused = true,
                     .inplace = true,
                     .inplace_operand = kPre});
REGISTER_CPU_KERNEL({.op = "LSTMGates",
                     .name = "lstm_gates_cpu",
                     .dtypes = kAllFloats,
                     .run = run_gates,
                     .workspace_bytes = gates_bytes,
                     .layout = LayoutRule::InnerContiguous,
                     .leaves_out_unused = true,
                     .inplace = true,
                     .inplace_operand = kPre});
REGISTER_CPU_KERNEL({.op = "LSTMStepsGrad",
                     .name = "lstm_steps_grad_cpu",
                     .dtypes = kAllFloats,
                     .run = run_grad,
                     .workspace_bytes = gradient_bytes<kSavedGates, kR>,
                     .layout = LayoutRule::InnerContiguous,
                     .leaves_out_unused = true,
                     .inplace = true,
                     .inplace_operand = kSavedGates});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
