// GRUSteps, GRUGates and GRUStepsGrad as in cpu/gru_steps.cpp, by the products of
// recurrent_steps.cuh: forward one launch per step, backward two; gates computed again in one. With
// `reset_before` forward takes two, as the second product needs all of the reset state.
#include "kernels/cuda/recurrent_steps.cuh"

namespace ortmodule::cuda {
namespace {

enum Operand : size_t { kPre, kWeights, kInputBias, kRecurrentBias };
struct Places {
  BatchOperands batch;
  size_t gates;
};
constexpr Places kSteps{{kPre, kWeights, 4, 5, 6}, 2}, kGates{{kPre, kWeights, 5, 6, 7}, 0};
constexpr size_t kSavedStates = 4;

/// The gates of a unit, which are saved: reset, update, new, and the recurrent part of the new
/// gate.
template <class T>
struct GruActivation {
  using C = ComputeOf<T>;
  DeviceRows<const T> pre;
  const T *input_bias, *recurrent_bias;
  DeviceRows<T> gates;
  int64_t hidden;

  __device__ static C bias_at(const T* bias, int64_t i) { return bias ? computed(bias[i]) : C(0); }
  /// What the input gives a gate.
  __device__ C given(int64_t step, int64_t row, int gate, int64_t j) const {
    const int64_t at = gate * hidden + j;
    return computed(pre.at(step, row)[at]) + bias_at(input_bias, at);
  }
  /// z: sums of the products in, update and new gate out.
  __device__ void operator()(int64_t step, int64_t row, int64_t j, C (&z)[3]) const {
    for (int g = 0; g < 2; ++g)
      z[g] = sigmoid(given(step, row, g, j) + (z[g] + bias_at(recurrent_bias, g * hidden + j)));
    const C recurrent = z[2] + bias_at(recurrent_bias, 2 * hidden + j);
    z[2] = fast_tanh(given(step, row, 2, j) + z[0] * recurrent);
    if (!gates) return;
    T* saved = gates.at(step, row) + j;
    for (int g = 0; g < 3; ++g) saved[g * hidden] = stored<T>(z[g]);
    saved[3 * hidden] = stored<T>(recurrent);
  }
  __device__ void pad(int64_t step, int64_t row, int64_t j) const {
    if (!gates) return;
    T* saved = gates.at(step, row) + j;
    for (int g = 0; g < 4; ++g) saved[g * hidden] = stored<T>(C(0));
  }
};

/// The states around a step.
template <class T>
struct GruStates {
  using C = ComputeOf<T>;
  DeviceSteps s;
  DeviceRows<T> y;
  const C* before;
  C* after;
  int64_t step;

  /// Whether the row has no such step: then the state of unit j stays.
  __device__ bool stays(const GruActivation<T>& activate, int64_t row, int64_t j) const {
    if (s.valid(step, row)) return false;
    const int64_t at = row * s.hidden + j;
    after[at] = before[at];
    if (s.starts) return true;  // a packed batch has no place for it
    activate.pad(step, row, j);
    if (y) y.at(step, row)[j] = stored<T>(C(0));
    return true;
  }
  __device__ void renew(int64_t row, int64_t j, C fresh, C kept) const {
    const int64_t at = row * s.hidden + j;
    const T state = stored<T>(fresh + kept * (before[at] - fresh));
    after[at] = computed(state);
    if (y) y.at(step, row)[j] = state;
  }
};

template <class T>
struct GruStep {
  using C = ComputeOf<T>;
  GruStates<T> states;
  GruActivation<T> activate;

  __device__ void operator()(int64_t row, int64_t j, const C* sums) const {
    if (states.stays(activate, row, j)) return;
    C z[3] = {sums[0], sums[1], sums[2]};
    activate(states.step, row, j, z);
    states.renew(row, j, z[2], z[1]);
  }
};

template <class T>
struct GruForwardLayer : StepsLayer {
  using C = ComputeOf<T>;
  bool resets_before;
  C *states[2], *keep = nullptr, *reset = nullptr;

  GruForwardLayer(const StepFacts& facts, void* workspace)
      : StepsLayer(facts, kSteps.batch, workspace),
        resets_before(facts.node().attrs.flag("reset_before")) {
    for (C*& state : states) state = scratch.take<C>(s.batch * s.state);
    if (!resets_before) return;
    keep = scratch.take<C>(s.batch * s.state);
    reset = scratch.take<C>(s.batch * s.state);
  }
};
template <class T>
struct GruGatesLayer : StepsLayer {
  GruGatesLayer(const StepFacts& facts, void* workspace)
      : StepsLayer(facts, kGates.batch, workspace) {}
};

template <class T>
GruActivation<T> activation_of(const KernelArgs& args, const StepsShape& s, size_t gates,
                               const int64_t* starts) {
  return {{args.in[kPre], s, starts},
          optional_operand(args, kInputBias).as<T>(),
          optional_operand(args, kRecurrentBias).as<T>(),
          {args.out[gates], s, starts},
          s.hidden};
}

/// launch(layer, states, activate) for each step.
template <class T, class Launch>
void run_layer(const KernelArgs& args, const Launch& launch) {
  const GruForwardLayer<T> layer(args.facts, args.workspace);
  const StepsShape& s = layer.s;
  const DeviceSteps d = layer.on_device(args, kSteps.batch);
  const DeviceRows<T> y(args.out[0], s, d.starts);
  const GruActivation<T> activate = activation_of<T>(args, s, kSteps.gates, d.starts);
  load_states<T>(optional_operand(args, kSteps.batch.initial), s.batch, s.state, layer.states[0],
                 args.context);
  ComputeOf<T>*before = layer.states[0], *after = layer.states[1];
  for (int64_t i = 0; i < s.steps; ++i) {
    launch(layer, GruStates<T>{d, y, before, after, s.step(i)}, activate);
    std::swap(before, after);
  }
  store_states<T>(before, s.batch, s.state, args.out[1], args.context);
}

template <class T>
void run_steps_of(const KernelArgs& args) {
  using C = ComputeOf<T>;
  run_layer<T>(args, [&](const auto& layer, const auto& states, const auto& activate) {
    const StepsShape& s = layer.s;
    step_product<C, 3>({s.batch, s.hidden, s.state}, DenseLeft<C>{states.before, s.state},
                       forward_weights<const T>(args.in[kWeights], s.hidden),
                       GruStep<T>{states, activate}, args.context);
  });
}

/// The first half of a step with `reset_before`: reset and update gate, and the reset state.
template <class T>
struct GruReset {
  using C = ComputeOf<T>;
  GruStates<T> states;
  GruActivation<T> activate;
  C *keep, *reset;

  __device__ void operator()(int64_t row, int64_t j, const C* sums) const {
    const int64_t step = states.step, at = row * states.s.hidden + j;
    keep[at] = reset[at] = C(0);
    if (!states.s.valid(step, row)) return;
    C z[2];
    for (int g = 0; g < 2; ++g) {
      const int64_t of_gate = g * states.s.hidden + j;
      z[g] = sigmoid(activate.given(step, row, g, j) +
                     (sums[g] + activate.bias_at(activate.recurrent_bias, of_gate)));
      if (activate.gates) activate.gates.at(step, row)[of_gate] = stored<T>(z[g]);
    }
    reset[at] = z[0] * states.before[at];
    keep[at] = z[1];
  }
};

/// The second half: the new gate, and the state after the step.
template <class T>
struct GruRenew {
  using C = ComputeOf<T>;
  GruStates<T> states;
  GruActivation<T> activate;
  const C* keep;

  __device__ void operator()(int64_t row, int64_t j, const C* sums) const {
    if (states.stays(activate, row, j)) return;
    const int64_t step = states.step, n = states.s.hidden;
    const C recurrent = sums[0] + activate.bias_at(activate.recurrent_bias, 2 * n + j);
    const C fresh = fast_tanh(activate.given(step, row, 2, j) + recurrent);
    if (activate.gates) {
      T* saved = activate.gates.at(step, row) + j;
      saved[2 * n] = stored<T>(fresh), saved[3 * n] = stored<T>(recurrent);
    }
    states.renew(row, j, fresh, keep[row * n + j]);
  }
};

template <class T>
void run_reset_steps(const KernelArgs& args) {
  using C = ComputeOf<T>;
  run_layer<T>(args, [&](const auto& layer, const auto& states, const auto& activate) {
    const StepsShape& s = layer.s;
    const ProductSizes sizes{s.batch, s.hidden, s.state};
    const RightWeights<const T> gates = forward_weights<const T>(args.in[kWeights], s.hidden);
    RightWeights<const T> fresh = gates;
    fresh.data += 2 * gates.gate_stride;
    step_product<C, 2>(sizes, DenseLeft<C>{states.before, s.state}, gates,
                       GruReset<T>{states, activate, layer.keep, layer.reset}, args.context);
    step_product<C, 1>(sizes, DenseLeft<C>{layer.reset, s.state}, fresh,
                       GruRenew<T>{states, activate, layer.keep}, args.context);
  });
}

template <class T>
struct SaveGates {
  using C = ComputeOf<T>;
  DeviceSteps s;
  GruActivation<T> activate;

  __device__ void operator()(int64_t row, int64_t j, const C* sums) const {
    const int64_t i = row / s.batch, in_batch = row % s.batch;
    const int64_t step = s.reverse ? s.steps - 1 - i : i;
    C z[3] = {sums[0], sums[1], sums[2]};
    if (s.valid(step, in_batch))
      activate(step, in_batch, j, z);
    else if (!s.starts)
      activate.pad(step, in_batch, j);
  }
};

template <class T>
void run_gates_of(const KernelArgs& args) {
  using C = ComputeOf<T>;
  const GruGatesLayer<T> layer(args.facts, args.workspace);
  const StepsShape& s = layer.s;
  const DeviceSteps d = layer.on_device(args, kGates.batch);
  const DeviceStates<const T> initial(optional_operand(args, kGates.batch.initial));
  const DeviceRows<const T> y(args.in[kSavedStates], s, d.starts);
  step_product<C, 3>({s.steps * s.batch, s.hidden, s.state}, PreviousLeft<T>{d, y, initial, 0},
                     forward_weights<const T>(args.in[kWeights], s.hidden),
                     SaveGates<T>{d, activation_of<T>(args, s, kGates.gates, d.starts)},
                     args.context);
}

// --- gradient ------------------------------------------------------------------------------------
enum Gradient : size_t { kSavedGates, kY, kR, kDy, kDyH, kInitialH };
constexpr BatchOperands kGradient{kSavedGates, kR, kInitialH, 6, 7};

template <class T>
struct GruBackwardLayer : StepsLayer {
  ComputeOf<T>*gates, *carry;

  GruBackwardLayer(const StepFacts& facts, void* workspace)
      : StepsLayer(facts, kGradient, workspace) {
    gates = scratch.take<ComputeOf<T>>(s.batch * s.gates);
    carry = scratch.take<ComputeOf<T>>(s.batch * s.state);
  }
};

/// The gradient of a unit's gates at one step. The carry becomes what reaches the state directly.
template <class T>
struct GruStepBack {
  using C = ComputeOf<T>;
  DeviceSteps s;
  DeviceRows<const T> gates, y, dy;
  DeviceStates<const T> initial;
  DeviceRows<T> dpre, drecurrent;
  C *dgates, *carry;
  int64_t step;

  __device__ void operator()(int64_t row, int64_t j) const {
    const int64_t n = s.hidden, at = row * n + j;
    C* const dz = dgates + row * s.gates + j;
    if (!s.valid(step, row)) {
      for (int g = 0; g < 3; ++g) dz[g * n] = C(0);
      if (!s.starts) write(row, j, dz), write_recurrent(row, j, dz);
      return;
    }
    const T* saved = gates.at(step, row) + j;
    const C reset = computed(saved[0]), keep = computed(saved[n]);
    const C fresh = computed(saved[2 * n]), recurrent = computed(saved[3 * n]);
    const T* earlier = previous_state(s, y, initial, step, row);
    const C before = earlier ? computed(earlier[j]) : C(0);
    const C d = (dy ? computed(dy.at(step, row)[j]) : C(0)) + carry[at];
    const C of_fresh = d * (C(1) - keep) * (C(1) - fresh * fresh);
    dz[0] = of_fresh * recurrent * (reset * (C(1) - reset));
    dz[n] = d * (before - fresh) * (keep * (C(1) - keep));
    dz[2 * n] = of_fresh;
    carry[at] = d * keep;
    write(row, j, dz);
    dz[2 * n] *= reset;
    write_recurrent(row, j, dz);
  }

 private:
  __device__ void write(int64_t row, int64_t j, const C* dz) const {
    if (dpre) write_to(dpre.at(step, row) + j, dz);
  }
  __device__ void write_recurrent(int64_t row, int64_t j, const C* dz) const {
    if (drecurrent) write_to(drecurrent.at(step, row) + j, dz);
  }
  __device__ void write_to(T* to, const C* dz) const {
    for (int g = 0; g < 3; ++g) to[g * s.hidden] = stored<T>(dz[g * s.hidden]);
  }
};

template <class T>
void run_grad_of(const KernelArgs& args) {
  const GruBackwardLayer<T> layer(args.facts, args.workspace);
  const StepsShape& s = layer.s;
  const DeviceSteps d = layer.on_device(args, kGradient);
  GruStepBack<T> back{d,
                      {args.in[kSavedGates], s, d.starts},
                      {args.in[kY], s, d.starts},
                      {optional_operand(args, kDy), s, d.starts},
                      DeviceStates<const T>(optional_operand(args, kInitialH)),
                      {args.out[0], s, d.starts},
                      {args.out[1], s, d.starts},
                      layer.gates,
                      layer.carry,
                      0};
  load_states<T>(optional_operand(args, kDyH), s.batch, s.state, layer.carry, args.context);
  for (int64_t i = s.steps; i-- > 0;) {
    back.step = s.step(i);
    for_each_state(s.batch, s.hidden, back, args.context);
    carry_back<T>(s, d, back.step, layer.gates, args.in[kR], layer.carry, args.context);
  }
  store_states<T>(layer.carry, s.batch, s.state, args.out[2], args.context);
}

void run_steps(const KernelArgs& args) {
  const bool resets_before = args.facts.node().attrs.flag("reset_before");
  dispatch_float(args.in[0].dtype, [&]<class T> {
    resets_before ? run_reset_steps<T>(args) : run_steps_of<T>(args);
  });
}
void run_gates(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { run_gates_of<T>(args); });
}
void run_grad(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { run_grad_of<T>(args); });
}

REGISTER_KERNEL({.op = "GRUSteps",
                 .name = "gru_steps_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_steps,
                 .workspace_bytes = scratch_bytes<GruForwardLayer>,
                 .layout = LayoutRule::InnerContiguous,
                 .leaves_out_unused = true});
REGISTER_KERNEL({.op = "GRUGates",
                 .name = "gru_gates_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_gates,
                 .workspace_bytes = scratch_bytes<GruGatesLayer>,
                 .layout = LayoutRule::InnerContiguous,
                 .leaves_out_unused = true});
REGISTER_KERNEL({.op = "GRUStepsGrad",
                 .name = "gru_steps_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_grad,
                 .workspace_bytes = scratch_bytes<GruBackwardLayer>,
                 .layout = LayoutRule::InnerContiguous,
                 .leaves_out_unused = true});

}  // namespace
}  // namespace ortmodule::cuda
