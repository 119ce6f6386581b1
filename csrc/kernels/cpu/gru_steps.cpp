// GRUSteps, its gates computed again from the saved states (GRUGates), and its gradient. Gates are
// in torch's order: reset, update, new; saved are these and the recurrent part of the new gate,
// which the reset gate multiplies. With `reset_before` it multiplies the state in front of that
// product.
#include "kernels/cpu/recurrent_steps.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

struct Places {
  BatchOperands batch;
  size_t gates;
};
constexpr Places kSteps{{kPre, kWeights, 4, 5, 6}, 2}, kGates{{kPre, kWeights, 5, 6, 7}, 0};
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
        gates_(args.out[places.gates], s_, valid_) {
    pack_recurrent<C, T>(s_, args.in[kWeights], at_);
    load_row(row_of<T>(optional_operand(args, kInputBias), 0), s_.gates, at_.bias);
    load_row(row_of<T>(optional_operand(args, kRecurrentBias), 0), s_.gates, at_.bias + s_.gates);
  }

  void run() {
    const StepRows<T> y(args_.out[0], s_, valid_);
    const TensorView initial = optional_operand(args_, places_.batch.initial),
                     last_h = args_.out[1];
    const int64_t n = s_.hidden;
    valid_.for_ranges(args_, s_, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row)
        load_row(row_of<T>(initial, row), n, at_.state + row * n);
      run_forward(
          s_, valid_, at_, first, last,
          [&](int64_t step, int64_t row, C* z, C* state) {
            update(step, row, z);
            const C *keep = z + n, *fresh = z + 2 * n;
            ORTM_SIMD
            for (int64_t j = 0; j < n; ++j)
              state[j] = computed(stored<T>(fresh[j] + keep[j] * (state[j] - fresh[j])));
            if (y) round_row(state, n, y.at(step, row));
          },
          [&](int64_t step, int64_t row) {
            pad(step, row);
            if (y) std::fill_n(y.at(step, row), n, stored<T>(C(0)));
          });
      for (int64_t row = first; row < last && last_h.data; ++row)
        round_row(at_.state + row * n, n, last_h.as<T>() + row * n);
    });
  }

  void run_gates() {
    const StepRows<const T> y(args_.in[kSavedStates], s_, valid_);
    valid_.for_ranges(args_, s_, [&](int64_t first, int64_t last) {
      run_again(
          s_, valid_, at_, y, optional_operand(args_, places_.batch.initial), first, last,
          [&](int64_t step, int64_t row, C* z) { update(step, row, z); },
          [&](int64_t step, int64_t row) { pad(step, row); });
    });
  }

 private:
  void update(int64_t step, int64_t row, C* z) const {
    const int64_t n = s_.hidden;
    const T *pre = pre_.at(step, row), *fresh = pre + 2 * n;
    const C *bias = at_.bias, *recurrent = at_.bias + s_.gates;
    T* gates = gates_ ? gates_.at(step, row) : nullptr;
    ORTM_SIMD
    for (int64_t j = 0; j < 2 * n; ++j) z[j] = (computed(pre[j]) + bias[j]) + (z[j] + recurrent[j]);
    ORTM_SIMD
    for (int64_t j = 2 * n; j < 3 * n; ++j) z[j] += recurrent[j];
    apply_sigmoid(z, 2 * n);
    if (gates) round_row(z + 2 * n, n, gates + 3 * n);
    ORTM_SIMD
    for (int64_t j = 0; j < n; ++j)
      z[2 * n + j] = (computed(fresh[j]) + bias[2 * n + j]) + z[j] * z[2 * n + j];
    apply_tanh(z + 2 * n, n);
    if (gates) round_row(z, 3 * n, gates);
  }

  void pad(int64_t step, int64_t row) const {
    if (gates_) std::fill_n(gates_.at(step, row), 4 * s_.hidden, stored<T>(C(0)));
  }

  const KernelArgs& args_;
  const Places& places_;
  StepsShape s_;
  ForwardScratch<C> at_;
  ValidRows valid_;
  StepRows<const T> pre_;
  StepRows<T> gates_;
};

/// Scratch with two products for each step: the state gives reset and update gate, and the reset
/// state the new one.
template <class C>
struct ResetScratch {
  StepsShape gates, fresh;
  ForwardScratch<C> at_gates, at_fresh;

  ResetScratch(const StepsShape& s, bool packs, void* memory)
      : gates(of_columns(s, 2 * s.hidden)),
        fresh(of_columns(s, s.hidden)),
        at_gates(gates, 1, packs, memory),
        at_fresh(fresh, 1, packs,
                 memory ? static_cast<std::byte*>(memory) + bytes_of_gates(packs) : nullptr) {}
  size_t bytes() const { return at_gates.scratch.bytes() + at_fresh.scratch.bytes(); }

 private:
  static StepsShape of_columns(StepsShape s, int64_t columns) {
    s.gates = columns;
    return s;
  }
  size_t bytes_of_gates(bool packs) const {
    return ForwardScratch<C>(gates, 1, packs, nullptr).scratch.bytes();
  }
};

/// The form with `reset_before`.
template <class T>
class ResetForward {
 public:
  using C = ComputeOf<T>;

  explicit ResetForward(const KernelArgs& args)
      : args_(args),
        s_(args.facts, kSteps.batch),
        at_(s_, !reads_weights_in_place<T>(s_), args.workspace),
        valid_(args, kSteps.batch, s_, at_.at_gates.table),
        pre_(args.in[kPre], s_, valid_),
        y_(args.out[0], s_, valid_),
        gates_(args.out[kSteps.gates], s_, valid_) {
    const int64_t n = s_.hidden;
    TensorView weights = args.in[kWeights];
    pack_recurrent<C, T>(at_.gates, weights, at_.at_gates);
    weights.data = weights.as<T>() + 2 * n * weights.strides[0];
    pack_recurrent<C, T>(at_.fresh, weights, at_.at_fresh);
    load_biases(kInputBias, 0);
    load_biases(kRecurrentBias, 1);
  }

  void run() {
    const TensorView initial = optional_operand(args_, kSteps.batch.initial), last_h = args_.out[1];
    const int64_t n = s_.hidden;
    C* const states = at_.at_gates.state;
    valid_.for_ranges(args_, s_, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row)
        load_row(row_of<T>(initial, row), n, states + row * n);
      std::fill_n(at_.at_fresh.state + first * n, (last - first) * n, C(0));
      for (int64_t i = 0; i < s_.steps; ++i)
        run_step(s_.step(i), first, valid_.end(s_.step(i), last));
      for (int64_t row = first; row < last && last_h.data; ++row)
        round_row(states + row * n, n, last_h.as<T>() + row * n);
    });
  }

 private:
  void load_biases(size_t operand, int64_t place) {
    const T* bias = row_of<T>(optional_operand(args_, operand), 0);
    const int64_t n = s_.hidden;
    load_row(bias, 2 * n, at_.at_gates.bias + place * 2 * n);
    load_row(bias ? bias + 2 * n : nullptr, n, at_.at_fresh.bias + place * n);
  }

  void run_step(int64_t step, int64_t first, int64_t end) const {
    const int64_t n = s_.hidden;
    multiply(at_.gates, at_.at_gates, first, end);
    for (int64_t row = first; row < end; ++row)
      if (valid_(step, row)) reset(step, row);
    multiply(at_.fresh, at_.at_fresh, first, end);
    for (int64_t row = first; row < end; ++row) {
      if (valid_(step, row)) {
        renew(step, row);
        continue;
      }
      if (y_) std::fill_n(y_.at(step, row), n, stored<T>(C(0)));
      if (gates_) std::fill_n(gates_.at(step, row), 4 * n, stored<T>(C(0)));
    }
  }

  static int64_t width(const StepsShape& s) {
    return PackedProduct<C>(s.state, s.gates).row_elements();
  }
  static void multiply(const StepsShape& s, const ForwardScratch<C>& at, int64_t first,
                       int64_t end) {
    multiply_states(s, at, at.state + first * s.state, end - first, at.sums + first * width(s));
  }

  void reset(int64_t step, int64_t row) const {
    const int64_t n = s_.hidden;
    const T* pre = pre_.at(step, row);
    const C *bias = at_.at_gates.bias, *recurrent = bias + 2 * n;
    const C* state = at_.at_gates.state + row * n;
    C *z = at_.at_gates.sums + row * width(at_.gates), *kept = at_.at_fresh.state + row * n;
    ORTM_SIMD
    for (int64_t j = 0; j < 2 * n; ++j) z[j] = (computed(pre[j]) + bias[j]) + (z[j] + recurrent[j]);
    apply_sigmoid(z, 2 * n);
    ORTM_SIMD
    for (int64_t j = 0; j < n; ++j) kept[j] = z[j] * state[j];
  }

  void renew(int64_t step, int64_t row) const {
    const int64_t n = s_.hidden;
    const T* pre = pre_.at(step, row) + 2 * n;
    const C *bias = at_.at_fresh.bias, *recurrent = bias + n;
    C* state = at_.at_gates.state + row * n;
    C *z = at_.at_gates.sums + row * width(at_.gates), *keep = z + n;
    C* fresh = at_.at_fresh.sums + row * width(at_.fresh);
    T* gates = gates_ ? gates_.at(step, row) : nullptr;
    ORTM_SIMD
    for (int64_t j = 0; j < n; ++j) fresh[j] += recurrent[j];
    if (gates) round_row(z, 2 * n, gates), round_row(fresh, n, gates + 3 * n);
    ORTM_SIMD
    for (int64_t j = 0; j < n; ++j) fresh[j] += computed(pre[j]) + bias[j];
    apply_tanh(fresh, n);
    if (gates) round_row(fresh, n, gates + 2 * n);
    ORTM_SIMD
    for (int64_t j = 0; j < n; ++j)
      state[j] = computed(stored<T>(fresh[j] + keep[j] * (state[j] - fresh[j])));
    if (y_) round_row(state, n, y_.at(step, row));
  }

  const KernelArgs& args_;
  StepsShape s_;
  ResetScratch<C> at_;
  ValidRows valid_;
  StepRows<const T> pre_;
  StepRows<T> y_, gates_;
};

enum Gradient : size_t { kSavedGates, kY, kR, kDy, kDyH, kInitialH };
constexpr BatchOperands kGradient{kSavedGates, kR, kInitialH, 6, 7};

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
        y_(args.in[kY], s_, valid_),
        dy_(optional_operand(args, kDy), s_, valid_),
        dpre_(args.out[0], s_, valid_),
        drecurrent_(args.out[1], s_, valid_) {
    pack_recurrent_back<C, T>(s_, args.in[kR], at_.weights);
  }

  void run() {
    const TensorView dy_h = optional_operand(args_, kDyH), first_h = args_.out[2];
    const int64_t n = s_.hidden;
    valid_.for_ranges(args_, s_, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row)
        load_row(row_of<T>(dy_h, row), n, at_.carry + row * n);
      run_backward(
          s_, valid_, at_, first, last,
          [&](int64_t step, int64_t row, C* dgates, C* carry) {
            go_back(step, row, dgates, carry);
          },
          [&](int64_t step, int64_t row) {
            for (const StepRows<T>& to : {dpre_, drecurrent_})
              if (to) std::fill_n(to.at(step, row), s_.gates, stored<T>(C(0)));
          });
      for (int64_t row = first; row < last && first_h.data; ++row)
        round_row(at_.carry + row * n, n, first_h.as<T>() + row * n);
    });
  }

 private:
  void go_back(int64_t step, int64_t row, C* dz, C* carry) const {
    const int64_t n = s_.hidden;
    C *gates = at_.rows + row * 2 * s_.gates, *before = gates + 4 * n, *dh = before + n;
    load_row(static_cast<const T*>(gates_.at(step, row)), 4 * n, gates);
    const TensorView initial = optional_operand(args_, kInitialH);
    load_row(previous_state(s_, valid_, y_, initial, step, row), n, before);
    load_row(dy_ ? static_cast<const T*>(dy_.at(step, row)) : nullptr, n, dh);
    const C *reset = gates, *keep = gates + n, *fresh = gates + 2 * n, *recurrent = gates + 3 * n;
    ORTM_SIMD
    for (int64_t j = 0; j < n; ++j) {
      const C d = dh[j] + carry[j];
      const C of_fresh = d * (C(1) - keep[j]) * (C(1) - fresh[j] * fresh[j]);
      dz[j] = of_fresh * recurrent[j] * (reset[j] * (C(1) - reset[j]));
      dz[n + j] = d * (before[j] - fresh[j]) * (keep[j] * (C(1) - keep[j]));
      dz[2 * n + j] = of_fresh;
      carry[j] = d * keep[j];
    }
    if (dpre_) round_row(dz, 3 * n, dpre_.at(step, row));
    ORTM_SIMD
    for (int64_t j = 0; j < n; ++j) dz[2 * n + j] *= reset[j];
    if (drecurrent_) round_row(dz, 3 * n, drecurrent_.at(step, row));
  }

  const KernelArgs& args_;
  StepsShape s_;
  BackwardScratch<C> at_;
  ValidRows valid_;
  StepRows<const T> gates_, y_, dy_;
  StepRows<T> dpre_, drecurrent_;
};

bool resets_before(const StepFacts& facts) { return facts.node().attrs.flag("reset_before"); }

void run_steps(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> {
    if (resets_before(args.facts))
      ResetForward<T>(args).run();
    else
      Forward<T>(args, kSteps, 1).run();
  });
}
size_t steps_bytes(const StepFacts& facts) {
  if (!resets_before(facts)) return forward_bytes<kSteps.batch>(facts);
  return dispatch_float(facts.inputs[0].dtype, [&]<class T> {
    const StepsShape s(facts, kSteps.batch);
    return ResetScratch<ComputeOf<T>>(s, !reads_weights_in_place<T>(s), nullptr).bytes();
  });
}
void run_gates(const KernelArgs& args) {
  const int64_t at_once = steps_at_once(StepsShape(args.facts, kGates.batch));
  dispatch_float(args.in[0].dtype, [&]<class T> { Forward<T>(args, kGates, at_once).run_gates(); });
}
void run_grad(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { Backward<T>(args).run(); });
}

REGISTER_CPU_KERNEL({.op = "GRUSteps",
                     .name = "gru_steps_cpu",
                     .dtypes = kAllFloats,
                     .run = run_steps,
                     .workspace_bytes = steps_bytes,
                     .layout = LayoutRule::InnerContiguous,
                     .leaves_out_unused = true});
REGISTER_CPU_KERNEL({.op = "GRUGates",
                     .name = "gru_gates_cpu",
                     .dtypes = kAllFloats,
                     .run = run_gates,
                     .workspace_bytes = gates_bytes<kGates.batch>,
                     .layout = LayoutRule::InnerContiguous,
                     .leaves_out_unused = true});
REGISTER_CPU_KERNEL({.op = "GRUStepsGrad",
                     .name = "gru_steps_grad_cpu",
                     .dtypes = kAllFloats,
                     .run = run_grad,
                     .workspace_bytes = gradient_bytes<kGradient>,
                     .layout = LayoutRule::InnerContiguous,
                     .leaves_out_unused = true});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
