// LSTMSteps, its gates computed again from the saved states (LSTMGates), and its gradient. Gates
// are in torch's order: input, forget, cell, output. Bytes moved: `pre` and all results once per
// element, the recurrent weights from the second-level cache once per step.
#include "kernels/cpu/recurrent_steps.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// Positions of operands and results; `y` is an operand of LSTMGates only.
struct Places {
  BatchOperands batch;
  size_t initial_c, gates, cells;
};
constexpr Places kSteps{{kPre, kWeights, 4, 6, 7, 8}, 5, 3, 4};
// The projection only for its sizes.
constexpr Places kGates{{kPre, kWeights, 5, 7, 8, 9}, 6, 0, 1};
constexpr size_t kSavedStates = 4;

template <class T>
class Forward {
 public:
  using C = ComputeOf<T>;

  Forward(const KernelArgs& args, const Places& places, int64_t at_once)
      : args_(args),
        places_(places),
        s_(args.facts, places.batch),
        at_(s_, at_once, !reads_weights_in_place<T>(s_), args.workspace),
        valid_(args, places.batch, s_, at_.table),
        pre_(args.in[kPre], s_, valid_),
        gates_(args.out[places.gates], s_, valid_),
        cells_(args.out[places.cells], s_, valid_) {
    pack_recurrent<C, T>(s_, args.in[kWeights], at_);
    load_row(row_of<T>(optional_operand(args, kInputBias), 0), s_.gates, at_.bias);
    load_row(row_of<T>(optional_operand(args, kRecurrentBias), 0), s_.gates, at_.bias + s_.gates);
    for (int64_t j = 0; j < s_.gates; ++j) at_.bias[j] += at_.bias[s_.gates + j];
    if (s_.projected) pack_projection();
  }

  void run() {
    const StepRows<T> y(args_.out[0], s_, valid_);
    valid_.for_ranges(args_, s_, [&](int64_t first, int64_t last) {
      load_initial(places_.batch.initial, first, last, s_.state, at_.state);
      load_initial(places_.initial_c, first, last, s_.hidden, at_.cell);
      run_forward(
          s_, valid_, at_, first, last,
          [&](int64_t step, int64_t row, C* sums, C* state) {
            update(step, row, sums);
            // The state that the next step reads is the rounded one, as it is saved.
            C* to = s_.projected ? at_.unprojected + row * s_.hidden : state;
            const C *tanh_cell = sums + 2 * s_.hidden, *output = sums + 3 * s_.hidden;
            ORTM_SIMD
            for (int64_t j = 0; j < s_.hidden; ++j)
              to[j] = computed(stored<T>(output[j] * tanh_cell[j]));
            if (y && !s_.projected) round_row(state, s_.state, y.at(step, row));
          },
          [&](int64_t step, int64_t row) {
            pad(step, row);
            if (y) std::fill_n(y.at(step, row), s_.state, stored<T>(C(0)));
          },
          [&](int64_t step, int64_t begin, int64_t end) {
            if (s_.projected) project(step, begin, end, y);
          });
      for (int64_t row = first; row < last; ++row) {
        keep_last(args_.out[1], row, s_.state, at_.state);
        keep_last(args_.out[2], row, s_.hidden, at_.cell);
      }
    });
  }

  void run_gates() {
    const StepRows<const T> y(args_.in[kSavedStates], s_, valid_);
    valid_.for_ranges(args_, s_, [&](int64_t first, int64_t last) {
      // Not the state, which has another place here for each range of rows.
      load_initial(places_.initial_c, first, last, s_.hidden, at_.cell);
      run_again(
          s_, valid_, at_, y, optional_operand(args_, places_.batch.initial), first, last,
          [&](int64_t step, int64_t row, C* sums) { update(step, row, sums); },
          [&](int64_t step, int64_t row) { pad(step, row); });
    });
  }

 private:
  void load_initial(size_t operand, int64_t first, int64_t last, int64_t width, C* rows) const {
    const TensorView initial = optional_operand(args_, operand);
    for (int64_t row = first; row < last; ++row)
      load_row(row_of<T>(initial, row), width, rows + row * width);
  }

  /// The states of rows [first, last) from those before the projection.
  void project(int64_t step, int64_t first, int64_t last, const StepRows<T>& y) const {
    const PackedProduct<C> product(s_.hidden, s_.state);
    const int64_t width = product.row_elements();
    product.run(at_.unprojected + first * s_.hidden, s_.hidden, last - first, at_.projection,
                at_.projected + first * width);
    for (int64_t row = first; row < last; ++row) {
      if (!valid_(step, row)) continue;
      const C* projected = at_.projected + row * width;
      C* state = at_.state + row * s_.state;
      ORTM_SIMD
      for (int64_t j = 0; j < s_.state; ++j) state[j] = computed(stored<T>(projected[j]));
      if (y) round_row(state, s_.state, y.at(step, row));
    }
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

  void pack_projection() const {
    const TensorView w = args_.in[places_.batch.projection];
    const StridedMatrix<const T> weights{w.as<T>(), s_.state, s_.hidden, w.strides[0], 1};
    PackedProduct<C>(s_.hidden, s_.state).pack(weights.transposed(), at_.projection);
  }

  void pad(int64_t step, int64_t row) const {
    if (gates_) std::fill_n(gates_.at(step, row), s_.gates, stored<T>(C(0)));
    if (cells_) std::fill_n(cells_.at(step, row), s_.hidden, stored<T>(C(0)));
  }

  void keep_last(const TensorView& to, int64_t row, int64_t width, const C* rows) const {
    if (to.data) round_row(rows + row * width, width, to.as<T>() + row * width);
  }

  const KernelArgs& args_;
  const Places& places_;
  StepsShape s_;
  ForwardScratch<C> at_;
  ValidRows valid_;
  StepRows<const T> pre_;
  StepRows<T> gates_, cells_;
};

enum Gradient : size_t { kSavedGates, kSavedCells, kR, kDy, kDyH, kDyC, kInitialC };
constexpr BatchOperands kGradient{kSavedGates, kR, kInitialC, 7, 8, 9};

template <class T>
class Backward {
 public:
  using C = ComputeOf<T>;

  explicit Backward(const KernelArgs& args)
      : args_(args),
        s_(args.facts, kGradient),
        at_(s_, args.workspace),
        valid_(args, kGradient, s_, at_.table),
        gates_(args.in[kSavedGates], s_, valid_),
        cells_(args.in[kSavedCells], s_, valid_),
        dy_(optional_operand(args, kDy), s_, valid_),
        dpre_(args.out[0], s_, valid_),
        dprojected_(args.out[3], s_, valid_) {
    pack_recurrent_back<C, T>(s_, args.in[kR], at_.weights);
    if (!s_.projected) return;
    const TensorView w = args.in[kGradient.projection];
    PackedProduct<C>(s_.state, s_.hidden)
        .pack(StridedMatrix<const T>{w.as<T>(), s_.state, s_.hidden, w.strides[0], 1},
              at_.projection);
  }

  void run() {
    valid_.for_ranges(args_, s_, [&](int64_t first, int64_t last) {
      const TensorView dy_h = optional_operand(args_, kDyH), dy_c = optional_operand(args_, kDyC);
      for (int64_t row = first; row < last; ++row) {
        load_row(row_of<T>(dy_h, row), s_.state, at_.carry + row * s_.state);
        load_row(row_of<T>(dy_c, row), s_.hidden, at_.cell + row * s_.hidden);
      }
      run_backward(
          s_, valid_, at_, first, last,
          [&](int64_t step, int64_t begin, int64_t end) {
            if (s_.projected) unproject(step, begin, end);
          },
          [&](int64_t step, int64_t row, C* dgates, C* carry) {
            go_back(step, row, dgates, carry);
          },
          [&](int64_t step, int64_t row) {
            if (dpre_) std::fill_n(dpre_.at(step, row), s_.gates, stored<T>(C(0)));
            if (dprojected_) std::fill_n(dprojected_.at(step, row), s_.state, stored<T>(C(0)));
          });
      for (int64_t row = first; row < last; ++row) {
        give(args_.out[1], row, s_.state, at_.carry);
        give(args_.out[2], row, s_.hidden, at_.cell);
      }
    });
  }

 private:
  /// The gradient of the states before the projection, for rows [first, last). The carry becomes
  /// zero.
  void unproject(int64_t step, int64_t first, int64_t last) const {
    const PackedProduct<C> product(s_.state, s_.hidden);
    C* totals = at_.rows + first * 2 * s_.gates;  // within the rows of this thread
    for (int64_t row = first; row < last; ++row) {
      if (!valid_(step, row)) continue;
      C *carry = at_.carry + row * s_.state, *total = totals + (row - first) * s_.state;
      load_row(dy_ ? static_cast<const T*>(dy_.at(step, row)) : nullptr, s_.state, total);
      ORTM_SIMD
      for (int64_t j = 0; j < s_.state; ++j) total[j] = computed(stored<T>(total[j] + carry[j]));
      if (dprojected_) round_row(total, s_.state, dprojected_.at(step, row));
      std::fill_n(carry, s_.state, C(0));
    }
    product.run(totals, s_.state, last - first, at_.projection,
                at_.unprojected + first * product.row_elements());
  }

  /// The gradient of the state before the projection, if there is one.
  void load_state_gradient(int64_t step, int64_t row, C* dh) const {
    if (s_.projected)
      std::copy_n(at_.unprojected + row * PackedProduct<C>(s_.state, s_.hidden).row_elements(),
                  s_.hidden, dh);
    else
      load_row(dy_ ? static_cast<const T*>(dy_.at(step, row)) : nullptr, s_.hidden, dh);
  }

  void go_back(int64_t step, int64_t row, C* dz, C* carry) const {
    const int64_t n = s_.hidden;
    C *gates = at_.rows + row * 2 * s_.gates, *cell = gates + 4 * n, *before = cell + n;
    C *dh = before + n, *dc = at_.cell + row * n;
    load_row(static_cast<const T*>(gates_.at(step, row)), 4 * n, gates);
    load_row(static_cast<const T*>(cells_.at(step, row)), n, cell);
    const TensorView initial = optional_operand(args_, kInitialC);
    load_row(previous_state(s_, valid_, cells_, initial, step, row), n, before);
    load_state_gradient(step, row, dh);
    if (!s_.projected) {
      ORTM_SIMD
      for (int64_t j = 0; j < n; ++j) dh[j] += carry[j];
      std::fill_n(carry, n, C(0));
    }
    apply_tanh(cell, n);
    const C *in = gates, *forget = gates + n, *candidate = gates + 2 * n, *out = gates + 3 * n;
    ORTM_SIMD
    for (int64_t j = 0; j < n; ++j) {
      const C d = dh[j];
      const C of_cell = dc[j] + d * out[j] * (C(1) - cell[j] * cell[j]);
      dz[j] = of_cell * candidate[j] * (in[j] * (C(1) - in[j]));
      dz[n + j] = of_cell * before[j] * (forget[j] * (C(1) - forget[j]));
      dz[2 * n + j] = of_cell * in[j] * (C(1) - candidate[j] * candidate[j]);
      dz[3 * n + j] = d * cell[j] * (out[j] * (C(1) - out[j]));
      dc[j] = of_cell * forget[j];
    }
    if (dpre_) round_row(dz, 4 * n, dpre_.at(step, row));
  }

  void give(const TensorView& to, int64_t row, int64_t width, const C* rows) const {
    if (to.data) round_row(rows + row * width, width, to.as<T>() + row * width);
  }

  const KernelArgs& args_;
  StepsShape s_;
  BackwardScratch<C> at_;
  ValidRows valid_;
  StepRows<const T> gates_, cells_, dy_;
  StepRows<T> dpre_, dprojected_;
};

void run_steps(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { Forward<T>(args, kSteps, 1).run(); });
}
void run_gates(const KernelArgs& args) {
  const int64_t at_once = steps_at_once(StepsShape(args.facts, kGates.batch));
  dispatch_float(args.in[0].dtype, [&]<class T> { Forward<T>(args, kGates, at_once).run_gates(); });
}
void run_grad(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { Backward<T>(args).run(); });
}

REGISTER_CPU_KERNEL({.op = "LSTMSteps",
                     .name = "lstm_steps_cpu",
                     .dtypes = kAllFloats,
                     .run = run_steps,
                     .workspace_bytes = forward_bytes<kSteps.batch>,
                     .layout = LayoutRule::InnerContiguous,
                     .leaves_out_unused = true,
                     .inplace = true,
                     .inplace_operand = kPre});
REGISTER_CPU_KERNEL({.op = "LSTMGates",
                     .name = "lstm_gates_cpu",
                     .dtypes = kAllFloats,
                     .run = run_gates,
                     .workspace_bytes = gates_bytes<kGates.batch>,
                     .layout = LayoutRule::InnerContiguous,
                     .leaves_out_unused = true,
                     .inplace = true,
                     .inplace_operand = kPre});
REGISTER_CPU_KERNEL({.op = "LSTMStepsGrad",
                     .name = "lstm_steps_grad_cpu",
                     .dtypes = kAllFloats,
                     .run = run_grad,
                     .workspace_bytes = gradient_bytes<kGradient>,
                     .layout = LayoutRule::InnerContiguous,
                     .leaves_out_unused = true,
                     .inplace = true,
                     .inplace_operand = kSavedGates});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
