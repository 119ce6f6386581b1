// RNNSteps and its gradient, which reads nothing but the states; and PreviousStates, which
// recurrent weights' gradients of all layers multiply.
#include "kernels/cpu/recurrent_steps.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr size_t kInitialH = 4;
constexpr BatchOperands kSteps{kPre, kWeights, kInitialH, 5, 6};

bool is_relu(const StepFacts& facts) { return facts.node().attrs.flag("relu"); }

template <class T>
void run_steps_of(const KernelArgs& args) {
  using C = ComputeOf<T>;
  const StepsShape s(args.facts, kSteps);
  ForwardScratch<C> at(s, 1, !reads_weights_in_place<T>(s), args.workspace);
  const ValidRows valid(args, kSteps, s, at.table);
  const StepRows<const T> pre(args.in[kPre], s, valid);
  const StepRows<T> y(args.out[0], s, valid);
  const int64_t n = s.hidden;
  const bool relu = is_relu(args.facts);
  pack_recurrent<C, T>(s, args.in[kWeights], at);
  load_row(row_of<T>(optional_operand(args, kInputBias), 0), n, at.bias);
  load_row(row_of<T>(optional_operand(args, kRecurrentBias), 0), n, at.bias + n);
  for (int64_t j = 0; j < n; ++j) at.bias[j] += at.bias[n + j];
  valid.for_ranges(args, s, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      load_row(row_of<T>(optional_operand(args, kInitialH), row), n, at.state + row * n);
    run_forward(
        s, valid, at, first, last,
        [&](int64_t step, int64_t row, C* z, C* state) {
          const T* given = pre.at(step, row);
          ORTM_SIMD
          for (int64_t j = 0; j < n; ++j) z[j] = (computed(given[j]) + at.bias[j]) + z[j];
          if (!relu) apply_tanh(z, n);
          for (int64_t j = 0; j < n; ++j)
            state[j] = computed(stored<T>(relu && z[j] < C(0) ? C(0) : z[j]));
          if (y) round_row(state, n, y.at(step, row));
        },
        [&](int64_t step, int64_t row) {
          if (y) std::fill_n(y.at(step, row), n, stored<T>(C(0)));
        });
    for (int64_t row = first; row < last && args.out[1].data; ++row)
      round_row(at.state + row * n, n, args.out[1].as<T>() + row * n);
  });
}

enum Gradient : size_t { kY, kR, kDy, kDyH };
constexpr BatchOperands kGradient{kY, kR, 6, 4, 5}, kPrevious{0, 0, 1, 2, 3};

template <class T>
void run_grad_of(const KernelArgs& args) {
  using C = ComputeOf<T>;
  const StepsShape s(args.facts, kGradient);
  const BackwardScratch<C> at(s, args.workspace);
  const ValidRows valid(args, kGradient, s, at.table);
  const StepRows<const T> y(args.in[kY], s, valid);
  const StepRows<const T> dy(optional_operand(args, kDy), s, valid);
  const StepRows<T> dpre(args.out[0], s, valid);
  const int64_t n = s.hidden;
  const bool relu = is_relu(args.facts);
  pack_recurrent_back<C, T>(s, args.in[kR], at.weights);
  valid.for_ranges(args, s, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      load_row(row_of<T>(optional_operand(args, kDyH), row), n, at.carry + row * n);
    run_backward(
        s, valid, at, first, last,
        [&](int64_t step, int64_t row, C* dz, C* carry) {
          const T* state = y.at(step, row);
          load_row(dy ? static_cast<const T*>(dy.at(step, row)) : nullptr, n, dz);
          ORTM_SIMD
          for (int64_t j = 0; j < n; ++j) {
            const C h = computed(state[j]), d = dz[j] + carry[j];
            dz[j] = relu ? (h > C(0) ? d : C(0)) : d * (C(1) - h * h);
            carry[j] = C(0);
          }
          if (dpre) round_row(dz, n, dpre.at(step, row));
        },
        [&](int64_t step, int64_t row) {
          if (dpre) std::fill_n(dpre.at(step, row), n, stored<T>(C(0)));
        });
    for (int64_t row = first; row < last && args.out[1].data; ++row)
      round_row(at.carry + row * n, n, args.out[1].as<T>() + row * n);
  });
}

size_t previous_bytes(const StepFacts& facts) {
  const StepsShape s(facts, kPrevious);
  return static_cast<size_t>(s.table_elements()) * sizeof(int64_t);
}

void run_previous(const KernelArgs& args) {
  const StepsShape s(args.facts, kPrevious);
  const ValidRows valid(args, kPrevious, s, static_cast<int64_t*>(args.workspace));
  const TensorView initial = optional_operand(args, kPrevious.initial);
  dispatch_width(size_of(args.in[0].dtype), [&]<class T> {
    const StepRows<const T> y(args.in[0], s, valid);
    const StepRows<T> to(args.out[0], s, valid);
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t step = begin; step < end; ++step)
        for (int64_t row = 0; row < valid.end(step, s.batch); ++row) {
          const T* from = previous_state(s, valid, y, initial, step, row);
          if (from)
            std::copy_n(from, s.hidden, to.at(step, row));
          else
            std::fill_n(to.at(step, row), s.hidden, T{});
        }
    };
    parallel_ranges(args.context, s.steps, grain_for(s.batch * s.hidden), run);
  });
}

void run_steps(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { run_steps_of<T>(args); });
}
void run_grad(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { run_grad_of<T>(args); });
}

REGISTER_CPU_KERNEL({.op = "RNNSteps",
                     .name = "rnn_steps_cpu",
                     .dtypes = kAllFloats,
                     .run = run_steps,
                     .workspace_bytes = forward_bytes<kSteps>,
                     .layout = LayoutRule::InnerContiguous,
                     .leaves_out_unused = true});
REGISTER_CPU_KERNEL({.op = "RNNStepsGrad",
                     .name = "rnn_steps_grad_cpu",
                     .dtypes = kAllFloats,
                     .run = run_grad,
                     .workspace_bytes = gradient_bytes<kGradient>,
                     .layout = LayoutRule::InnerContiguous,
                     .leaves_out_unused = true});
REGISTER_CPU_KERNEL({.op = "PreviousStates",
                     .name = "previous_states_cpu",
                     .dtypes = kAllFloats,
                     .run = run_previous,
                     .workspace_bytes = previous_bytes,
                     .layout = LayoutRule::InnerContiguous});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
