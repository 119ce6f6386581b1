// RNNSteps, RNNStepsGrad and PreviousStates as in cpu/rnn_steps.cpp, by the products of
// recurrent_steps.cuh: forward one launch per step, backward two.
#include "kernels/cuda/recurrent_steps.cuh"

namespace ortmodule::cuda {
namespace {

enum Operand : size_t { kPre, kWeights, kInputBias, kRecurrentBias, kInitialH };
constexpr BatchOperands kSteps{kPre, kWeights, kInitialH, 5, 6};
enum Gradient : size_t { kY, kR, kDy, kDyH };
constexpr BatchOperands kGradient{kY, kR, 6, 4, 5}, kPrevious{0, 0, 1, 2, 3};

bool is_relu(const StepFacts& facts) { return facts.node().attrs.flag("relu"); }

template <class T>
struct RnnStep {
  using C = ComputeOf<T>;
  DeviceSteps s;
  DeviceRows<const T> pre;
  DeviceRows<T> y;
  const T *input_bias, *recurrent_bias;
  const C* before;
  C* after;
  bool relu;
  int64_t step;

  __device__ static C bias_at(const T* bias, int64_t i) { return bias ? computed(bias[i]) : C(0); }
  __device__ void operator()(int64_t row, int64_t j, const C* sums) const {
    const int64_t at = row * s.hidden + j;
    if (!s.valid(step, row)) {
      after[at] = before[at];
      // A packed batch has no place for it.
      if (y && !s.starts) y.at(step, row)[j] = stored<T>(C(0));
      return;
    }
    const C bias = bias_at(input_bias, j) + bias_at(recurrent_bias, j);
    C z = (computed(pre.at(step, row)[j]) + bias) + sums[0];
    z = relu ? (z < C(0) ? C(0) : z) : fast_tanh(z);
    const T state = stored<T>(z);
    after[at] = computed(state);
    if (y) y.at(step, row)[j] = state;
  }
};

template <class T>
struct RnnForwardLayer : StepsLayer {
  ComputeOf<T>* states[2];

  RnnForwardLayer(const StepFacts& facts, void* workspace) : StepsLayer(facts, kSteps, workspace) {
    for (auto*& state : states) state = scratch.take<ComputeOf<T>>(s.batch * s.state);
  }
};

template <class T>
void run_steps_of(const KernelArgs& args) {
  using C = ComputeOf<T>;
  const RnnForwardLayer<T> layer(args.facts, args.workspace);
  const StepsShape& s = layer.s;
  const DeviceSteps d = layer.on_device(args, kSteps);
  RnnStep<T> body{d,
                  {args.in[kPre], s, d.starts},
                  {args.out[0], s, d.starts},
                  optional_operand(args, kInputBias).as<T>(),
                  optional_operand(args, kRecurrentBias).as<T>(),
                  layer.states[0],
                  layer.states[1],
                  is_relu(args.facts),
                  0};
  load_states<T>(optional_operand(args, kInitialH), s.batch, s.state, layer.states[0],
                 args.context);
  for (int64_t i = 0; i < s.steps; ++i) {
    body.step = s.step(i);
    body.before = layer.states[i % 2];
    body.after = layer.states[(i + 1) % 2];
    step_product<C, 1>({s.batch, s.hidden, s.state}, DenseLeft<C>{body.before, s.state},
                       forward_weights<const T>(args.in[kWeights], s.hidden), body, args.context);
  }
  store_states<T>(layer.states[s.steps % 2], s.batch, s.state, args.out[1], args.context);
}

template <class T>
struct RnnStepBack {
  using C = ComputeOf<T>;
  DeviceSteps s;
  DeviceRows<const T> y, dy;
  DeviceRows<T> dpre;
  C *dgates, *carry;
  bool relu;
  int64_t step;

  __device__ void operator()(int64_t row, int64_t j) const {
    const int64_t at = row * s.hidden + j;
    if (!s.valid(step, row)) {
      dgates[at] = C(0);
      if (dpre && !s.starts) dpre.at(step, row)[j] = stored<T>(C(0));
      return;
    }
    const C h = computed(y.at(step, row)[j]);
    const C d = (dy ? computed(dy.at(step, row)[j]) : C(0)) + carry[at];
    const C dz = relu ? (h > C(0) ? d : C(0)) : d * (C(1) - h * h);
    dgates[at] = dz;
    carry[at] = C(0);
    if (dpre) dpre.at(step, row)[j] = stored<T>(dz);
  }
};

template <class T>
struct RnnBackwardLayer : StepsLayer {
  ComputeOf<T>*gates, *carry;

  RnnBackwardLayer(const StepFacts& facts, void* workspace)
      : StepsLayer(facts, kGradient, workspace) {
    gates = scratch.take<ComputeOf<T>>(s.batch * s.gates);
    carry = scratch.take<ComputeOf<T>>(s.batch * s.state);
  }
};

template <class T>
void run_grad_of(const KernelArgs& args) {
  const RnnBackwardLayer<T> layer(args.facts, args.workspace);
  const StepsShape& s = layer.s;
  const DeviceSteps d = layer.on_device(args, kGradient);
  RnnStepBack<T> back{d,
                      {args.in[kY], s, d.starts},
                      {optional_operand(args, kDy), s, d.starts},
                      {args.out[0], s, d.starts},
                      layer.gates,
                      layer.carry,
                      is_relu(args.facts),
                      0};
  load_states<T>(optional_operand(args, kDyH), s.batch, s.state, layer.carry, args.context);
  for (int64_t i = s.steps; i-- > 0;) {
    back.step = s.step(i);
    for_each_state(s.batch, s.hidden, back, args.context);
    carry_back<T>(s, d, back.step, layer.gates, args.in[kR], layer.carry, args.context);
  }
  store_states<T>(layer.carry, s.batch, s.state, args.out[1], args.context);
}

void run_steps(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { run_steps_of<T>(args); });
}
void run_grad(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { run_grad_of<T>(args); });
}

// --- previous states -----------------------------------------------------------------------------
template <class T>
struct CopyPrevious {
  DeviceSteps s;
  DeviceRows<const T> y;
  DeviceStates<const T> initial;
  DeviceRows<T> to;

  __device__ void operator()(int64_t place, int64_t j) const {
    const int64_t step = place / s.batch, row = place % s.batch;
    if (s.starts && !s.valid(step, row)) return;
    const T* from = previous_state(s, y, initial, step, row);
    to.at(step, row)[j] = from ? from[j] : T{};
  }
};

size_t previous_bytes(const StepFacts& facts) {
  return StepsLayer(facts, kPrevious, nullptr).scratch.bytes();
}

void run_previous(const KernelArgs& args) {
  const StepsLayer layer(args.facts, kPrevious, args.workspace);
  const StepsShape& s = layer.s;
  const DeviceSteps d = layer.on_device(args, kPrevious);
  dispatch_width(size_of(args.in[0].dtype), [&]<class T> {
    for_each_state(s.steps * s.batch, s.hidden,
                   CopyPrevious<T>{d,
                                   {args.in[0], s, d.starts},
                                   DeviceStates<const T>(optional_operand(args, kPrevious.initial)),
                                   {args.out[0], s, d.starts}},
                   args.context);
  });
}

REGISTER_KERNEL({.op = "RNNSteps",
                 .name = "rnn_steps_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_steps,
                 .workspace_bytes = scratch_bytes<RnnForwardLayer>,
                 .layout = LayoutRule::InnerContiguous,
                 .leaves_out_unused = true});
REGISTER_KERNEL({.op = "RNNStepsGrad",
                 .name = "rnn_steps_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_grad,
                 .workspace_bytes = scratch_bytes<RnnBackwardLayer>,
                 .layout = LayoutRule::InnerContiguous,
                 .leaves_out_unused = true});
REGISTER_KERNEL({.op = "PreviousStates",
                 .name = "previous_states_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_previous,
                 .workspace_bytes = previous_bytes,
                 .layout = LayoutRule::InnerContiguous});

}  // namespace
}  // namespace ortmodule::cuda
