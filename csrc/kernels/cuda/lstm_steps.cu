// LSTMSteps, LSTMGates and LSTMStepsGrad as in cpu/lstm_steps.cpp, by the products of
// recurrent_steps.cuh: forward one launch per step (two with a projection), backward two (four).
// Gates computed again take one product for many steps, whose activated gates are in the
// workspace, and a launch in which a thread runs its cell through these steps.
#include "kernels/cuda/recurrent_steps.cuh"

namespace ortmodule::cuda {
namespace {

enum Operand : size_t { kPre, kWeights, kInputBias, kRecurrentBias };

/// Positions of operands and results; `y` is an operand of LSTMGates only.
struct Places {
  BatchOperands batch;
  size_t initial_c, gates, cells;
};
constexpr Places kSteps{{kPre, kWeights, 4, 6, 7, 8}, 5, 3, 4};
constexpr Places kGates{{kPre, kWeights, 5, 7, 8, 9}, 6, 0, 1};
constexpr size_t kSavedStates = 4;

/// Activates a unit's gates and writes the saved ones.
template <class T>
struct LstmActivation {
  using C = ComputeOf<T>;
  DeviceRows<const T> pre;
  const T *input_bias, *recurrent_bias;
  DeviceRows<T> gates;
  int64_t hidden;

  __device__ static C bias_at(const T* bias, int64_t i) { return bias ? computed(bias[i]) : C(0); }
  /// z: sums of the products in, activated gates out.
  __device__ void operator()(int64_t step, int64_t row, int64_t j, C (&z)[4]) const {
    const T* given = pre.at(step, row);
    for (int g = 0; g < 4; ++g) {
      const int64_t at = g * hidden + j;
      const C bias = bias_at(input_bias, at) + bias_at(recurrent_bias, at);
      z[g] = (computed(given[at]) + bias) + z[g];
      z[g] = g == 2 ? fast_tanh(z[g]) : sigmoid(z[g]);
    }
    if (!gates) return;
    T* saved = gates.at(step, row);
    for (int g = 0; g < 4; ++g) saved[g * hidden + j] = stored<T>(z[g]);
  }
  __device__ void pad(int64_t step, int64_t row, int64_t j) const {
    if (!gates) return;
    T* saved = gates.at(step, row);
    for (int g = 0; g < 4; ++g) saved[g * hidden + j] = stored<T>(C(0));
  }
};

/// The end of a step's product. `to` is the state, or what is projected to it.
template <class T>
struct LstmStep {
  using C = ComputeOf<T>;
  DeviceSteps s;
  LstmActivation<T> activate;
  DeviceRows<T> cells, y;  // y: unless projected
  C* cell;
  const C* before;  // the state; null if projected
  C* to;
  int64_t step;

  __device__ void operator()(int64_t row, int64_t j, const C* sums) const {
    const int64_t at = row * s.hidden + j;
    if (!s.valid(step, row)) {
      to[at] = before ? before[at] : C(0);
      if (s.starts) return;  // a packed batch has no place for it
      activate.pad(step, row, j);
      if (cells) cells.at(step, row)[j] = stored<T>(C(0));
      if (y) y.at(step, row)[j] = stored<T>(C(0));
      return;
    }
    C z[4] = {sums[0], sums[1], sums[2], sums[3]};
    activate(step, row, j, z);
    const C c = z[1] * cell[at] + z[0] * z[2];
    cell[at] = c;
    if (cells) cells.at(step, row)[j] = stored<T>(c);
    const T state = stored<T>(z[3] * fast_tanh(c));
    to[at] = computed(state);
    if (y) y.at(step, row)[j] = state;
  }
};

/// The end of the product with the projection.
template <class T>
struct Project {
  using C = ComputeOf<T>;
  DeviceSteps s;
  DeviceRows<T> y;
  const C* before;
  C* to;
  int64_t step;

  __device__ void operator()(int64_t row, int64_t j, const C* sums) const {
    const bool valid = s.valid(step, row);
    const T state = stored<T>(valid ? sums[0] : C(0));
    to[row * s.state + j] = valid ? computed(state) : before[row * s.state + j];
    if (y && (valid || !s.starts)) y.at(step, row)[j] = state;
  }
};

template <class T>
struct LstmForwardLayer : StepsLayer {
  using C = ComputeOf<T>;
  C *states[2], *cell, *unprojected;

  LstmForwardLayer(const StepFacts& facts, void* workspace)
      : StepsLayer(facts, kSteps.batch, workspace) {
    for (C*& state : states) state = scratch.take<C>(s.batch * s.state);
    cell = scratch.take<C>(s.batch * s.hidden);
    unprojected = scratch.take<C>(s.projected ? s.batch * s.hidden : 0);
  }
};

template <class T>
LstmActivation<T> activation_of(const KernelArgs& args, const StepsShape& s, size_t gates,
                                const int64_t* starts) {
  return {{args.in[kPre], s, starts},
          optional_operand(args, kInputBias).as<T>(),
          optional_operand(args, kRecurrentBias).as<T>(),
          {args.out[gates], s, starts},
          s.hidden};
}

template <class T>
void run_steps_of(const KernelArgs& args) {
  using C = ComputeOf<T>;
  const LstmForwardLayer<T> layer(args.facts, args.workspace);
  const StepsShape& s = layer.s;
  KernelContext& context = args.context;
  const DeviceSteps d = layer.on_device(args, kSteps.batch);
  const DeviceRows<T> y(args.out[0], s, d.starts), cells(args.out[kSteps.cells], s, d.starts);
  const LstmActivation<T> activate = activation_of<T>(args, s, kSteps.gates, d.starts);
  const auto weights = forward_weights<const T>(args.in[kWeights], s.hidden);
  load_states<T>(optional_operand(args, kSteps.batch.initial), s.batch, s.state, layer.states[0],
                 context);
  load_states<T>(optional_operand(args, kSteps.initial_c), s.batch, s.hidden, layer.cell, context);
  C *before = layer.states[0], *after = layer.states[1];
  for (int64_t i = 0; i < s.steps; ++i) {
    const int64_t step = s.step(i);
    const DenseLeft<C> left{before, s.state};
    const bool projected = s.projected;
    step_product<C, 4>(
        {s.batch, s.hidden, s.state}, left, weights,
        LstmStep<T>{d, activate, cells, projected ? DeviceRows<T>() : y, layer.cell,
                    projected ? nullptr : before, projected ? layer.unprojected : after, step},
        context);
    if (projected) {
      const TensorView w = args.in[kSteps.batch.projection];
      step_product<C, 1>({s.batch, s.state, s.hidden}, DenseLeft<C>{layer.unprojected, s.hidden},
                         RightWeights<const T>{w.as<T>(), 1, 0, w.strides[0]},
                         Project<T>{d, y, before, after, step}, context);
    }
    std::swap(before, after);
  }
  store_states<T>(before, s.batch, s.state, args.out[1], context);
  store_states<T>(layer.cell, s.batch, s.hidden, args.out[2], context);
}

// --- gates computed again ------------------------------------------------------------------------
/// Steps of one product.
int64_t steps_at_once(const StepsShape& s) {
  constexpr int64_t kProductRows = 4096;
  return std::clamp<int64_t>(kProductRows / std::max<int64_t>(s.batch, 1), 1,
                             std::max<int64_t>(s.steps, 1));
}

template <class T>
struct LstmGatesLayer : StepsLayer {
  using C = ComputeOf<T>;
  C *gates, *cell;  // of the steps of one product; [batch, hidden]

  LstmGatesLayer(const StepFacts& facts, void* workspace)
      : StepsLayer(facts, kGates.batch, workspace) {
    gates = scratch.take<C>(steps_at_once(s) * s.batch * s.gates);
    cell = scratch.take<C>(s.batch * s.hidden);
  }
};

template <class T>
struct KeepGates {
  using C = ComputeOf<T>;
  DeviceSteps s;
  LstmActivation<T> activate;
  C* gates;
  int64_t first;

  __device__ void operator()(int64_t row, int64_t j, const C* sums) const {
    const int64_t i = first + row / s.batch, in_batch = row % s.batch;
    const int64_t step = s.reverse ? s.steps - 1 - i : i;
    if (s.starts && !s.valid(step, in_batch)) return;  // has no place
    C z[4] = {sums[0], sums[1], sums[2], sums[3]};
    if (s.valid(step, in_batch))
      activate(step, in_batch, j, z);
    else
      activate.pad(step, in_batch, j);
    for (int g = 0; g < 4; ++g) gates[row * s.gates + g * s.hidden + j] = z[g];
  }
};

/// Runs a cell through `count` steps.
template <class T>
struct RunCells {
  using C = ComputeOf<T>;
  DeviceSteps s;
  const C* gates;
  C* cell;
  DeviceRows<T> cells;
  int64_t first, count;

  __device__ void operator()(int64_t row, int64_t j) const {
    C c = cell[row * s.hidden + j];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t step = s.reverse ? s.steps - 1 - (first + i) : first + i;
      const bool valid = s.valid(step, row);
      if (!valid && s.starts) continue;
      const C* z = gates + (i * s.batch + row) * s.gates + j;
      if (valid) c = z[s.hidden] * c + z[0] * z[2 * s.hidden];
      cells.at(step, row)[j] = stored<T>(valid ? c : C(0));
    }
    cell[row * s.hidden + j] = c;
  }
};

template <class T>
void run_gates_of(const KernelArgs& args) {
  using C = ComputeOf<T>;
  const LstmGatesLayer<T> layer(args.facts, args.workspace);
  const StepsShape& s = layer.s;
  KernelContext& context = args.context;
  const DeviceSteps d = layer.on_device(args, kGates.batch);
  const DeviceRows<T> cells(args.out[kGates.cells], s, d.starts);
  const LstmActivation<T> activate = activation_of<T>(args, s, kGates.gates, d.starts);
  const DeviceStates<const T> initial(optional_operand(args, kGates.batch.initial));
  const DeviceRows<const T> y(args.in[kSavedStates], s, d.starts);
  load_states<T>(optional_operand(args, kGates.initial_c), s.batch, s.hidden, layer.cell, context);
  const int64_t most = steps_at_once(s);
  for (int64_t first = 0; first < s.steps; first += most) {
    const int64_t count = std::min(most, s.steps - first);
    step_product<C, 4>({count * s.batch, s.hidden, s.state}, PreviousLeft<T>{d, y, initial, first},
                       forward_weights<const T>(args.in[kWeights], s.hidden),
                       KeepGates<T>{d, activate, layer.gates, first}, context);
    if (args.out[kGates.cells].data)
      for_each_state(s.batch, s.hidden,
                     RunCells<T>{d, layer.gates, layer.cell, cells, first, count}, context);
  }
}

// --- gradient ------------------------------------------------------------------------------------
enum Gradient : size_t { kSavedGates, kSavedCells, kR, kDy, kDyH, kDyC, kInitialC };
constexpr BatchOperands kGradient{kSavedGates, kR, kInitialC, 7, 8, 9};

template <class T>
struct LstmBackwardLayer : StepsLayer {
  using C = ComputeOf<T>;
  C *gates, *carry, *cell, *total, *unprojected;

  LstmBackwardLayer(const StepFacts& facts, void* workspace)
      : StepsLayer(facts, kGradient, workspace) {
    gates = scratch.take<C>(s.batch * s.gates);
    carry = scratch.take<C>(s.batch * s.state);
    cell = scratch.take<C>(s.batch * s.hidden);
    total = scratch.take<C>(s.projected ? s.batch * s.state : 0);
    unprojected = scratch.take<C>(s.projected ? s.batch * s.hidden : 0);
  }
};

/// The whole gradient of the projected state of a step; the carry becomes zero.
template <class T>
struct Total {
  using C = ComputeOf<T>;
  DeviceSteps s;
  DeviceRows<const T> dy;
  DeviceRows<T> dprojected;
  C *carry, *total;
  int64_t step;

  __device__ void operator()(int64_t row, int64_t j) const {
    const int64_t at = row * s.state + j;
    const bool valid = s.valid(step, row);
    if (!valid && s.starts) return;
    const C given = valid && dy ? computed(dy.at(step, row)[j]) : C(0);
    const T sum = stored<T>(valid ? given + carry[at] : C(0));
    total[at] = computed(sum);
    if (dprojected) dprojected.at(step, row)[j] = sum;
    if (valid) carry[at] = C(0);
  }
};

template <class C>
struct StoreDense {
  C* to;
  int64_t width;
  __device__ void operator()(int64_t row, int64_t j, const C* sums) const {
    to[row * width + j] = sums[0];
  }
};

/// The gradient of a unit's gates at one step.
template <class T>
struct LstmStepBack {
  using C = ComputeOf<T>;
  DeviceSteps s;
  DeviceRows<const T> gates, cells, dy;
  DeviceStates<const T> initial_c;
  DeviceRows<T> dpre;
  C *dgates, *carry, *dcell;
  const C* unprojected;  // the gradient of the state before the projection; null without one
  int64_t step;

  __device__ void operator()(int64_t row, int64_t j) const {
    const int64_t n = s.hidden, at = row * n + j;
    C* const dz = dgates + row * s.gates + j;
    if (!s.valid(step, row)) {
      for (int g = 0; g < 4; ++g) dz[g * n] = C(0);
      if (s.starts || !dpre) return;
      for (int g = 0; g < 4; ++g) dpre.at(step, row)[g * n + j] = stored<T>(C(0));
      return;
    }
    const T* saved = gates.at(step, row) + j;
    const C in = computed(saved[0]), forget = computed(saved[n]);
    const C candidate = computed(saved[2 * n]), out = computed(saved[3 * n]);
    const C cell = fast_tanh(computed(cells.at(step, row)[j]));
    const T* earlier = previous_state(s, cells, initial_c, step, row);
    const C before = earlier ? computed(earlier[j]) : C(0);
    C d = unprojected ? unprojected[at] : dy ? computed(dy.at(step, row)[j]) : C(0);
    if (!unprojected) {
      d += carry[at];
      carry[at] = C(0);
    }
    const C of_cell = dcell[at] + d * out * (C(1) - cell * cell);
    dz[0] = of_cell * candidate * (in * (C(1) - in));
    dz[n] = of_cell * before * (forget * (C(1) - forget));
    dz[2 * n] = of_cell * in * (C(1) - candidate * candidate);
    dz[3 * n] = d * cell * (out * (C(1) - out));
    dcell[at] = of_cell * forget;
    if (!dpre) return;
    for (int g = 0; g < 4; ++g) dpre.at(step, row)[g * n + j] = stored<T>(dz[g * n]);
  }
};

template <class T>
void run_grad_of(const KernelArgs& args) {
  using C = ComputeOf<T>;
  const LstmBackwardLayer<T> layer(args.facts, args.workspace);
  const StepsShape& s = layer.s;
  KernelContext& context = args.context;
  const DeviceSteps d = layer.on_device(args, kGradient);
  const DeviceRows<const T> dy(optional_operand(args, kDy), s, d.starts);
  const LstmStepBack<T> back{d,
                             {args.in[kSavedGates], s, d.starts},
                             {args.in[kSavedCells], s, d.starts},
                             dy,
                             DeviceStates<const T>(optional_operand(args, kInitialC)),
                             {args.out[0], s, d.starts},
                             layer.gates,
                             layer.carry,
                             layer.cell,
                             s.projected ? layer.unprojected : nullptr,
                             0};
  load_states<T>(optional_operand(args, kDyH), s.batch, s.state, layer.carry, context);
  load_states<T>(optional_operand(args, kDyC), s.batch, s.hidden, layer.cell, context);
  for (int64_t i = s.steps; i-- > 0;) {
    const int64_t step = s.step(i);
    if (s.projected) {
      const TensorView w = args.in[kGradient.projection];
      for_each_state(s.batch, s.state,
                     Total<T>{d, dy, {args.out[3], s, d.starts}, layer.carry, layer.total, step},
                     context);
      step_product<C, 1>({s.batch, s.hidden, s.state}, DenseLeft<C>{layer.total, s.state},
                         backward_weights<const T>(w), StoreDense<C>{layer.unprojected, s.hidden},
                         context);
    }
    LstmStepBack<T> at_step = back;
    at_step.step = step;
    for_each_state(s.batch, s.hidden, at_step, context);
    carry_back<T>(s, d, step, layer.gates, args.in[kR], layer.carry, context);
  }
  store_states<T>(layer.carry, s.batch, s.state, args.out[1], context);
  store_states<T>(layer.cell, s.batch, s.hidden, args.out[2], context);
}

void run_steps(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { run_steps_of<T>(args); });
}
void run_gates(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { run_gates_of<T>(args); });
}
void run_grad(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { run_grad_of<T>(args); });
}

REGISTER_KERNEL({.op = "LSTMSteps",
                 .name = "lstm_steps_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_steps,
                 .workspace_bytes = scratch_bytes<LstmForwardLayer>,
                 .layout = LayoutRule::InnerContiguous,
                 .leaves_out_unused = true,
                 .inplace = true,
                 .inplace_operand = kPre});
REGISTER_KERNEL({.op = "LSTMGates",
                 .name = "lstm_gates_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_gates,
                 .workspace_bytes = scratch_bytes<LstmGatesLayer>,
                 .layout = LayoutRule::InnerContiguous,
                 .leaves_out_unused = true,
                 .inplace = true,
                 .inplace_operand = kPre});
REGISTER_KERNEL({.op = "LSTMStepsGrad",
                 .name = "lstm_steps_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_grad,
                 .workspace_bytes = scratch_bytes<LstmBackwardLayer>,
                 .layout = LayoutRule::InnerContiguous,
                 .leaves_out_unused = true,
                 .inplace = true,
                 .inplace_operand = kSavedGates});

}  // namespace
}  // namespace ortmodule::cuda
