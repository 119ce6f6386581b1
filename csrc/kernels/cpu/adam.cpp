// FusedAdam: one pass over parameters, gradients and both moments of many tensors; formula and
// operands in kernels/adam.h. Bytes moved: p, m, v twice, g once (28 per float32 element).
// No element's result depends on where its tensor is cut.
#include "kernels/adam.h"

#include "kernels/cpu/row_math.h"
#include "kernels/cpu/tensor_shares.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

template <bool L2, bool Late, class C>
__attribute__((noinline)) void update_vector(const AdamCoefficients<C>& shared, int64_t count,
                                             const C* grad, C* param, C* exp_avg, C* exp_avg_sq) {
  const AdamCoefficients<C> c = shared;  // a copy, which no store can change
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i)
    adam_element<L2, Late>(c, grad[i], param[i], exp_avg[i], exp_avg_sq[i]);
}

template <class T, class C>
__attribute__((noinline)) void unscale_vector(C factor, int64_t count, const C* grad, C* unscaled,
                                              T* stored_grad) {
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) unscaled[i] = grad[i] * factor;
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) stored_grad[i] = stored<T>(unscaled[i]);
}

// `count` elements of one tensor, few enough for the buffers where they are converted.
template <class T, class S, bool L2, bool Late>
void update_piece(const AdamCoefficients<ComputeOf<T>>& c, bool unscale, int64_t count, T* grad,
                  T* param, S* exp_avg, S* exp_avg_sq) {
  using C = ComputeOf<T>;
  C grad_buffer[kRowChunk], param_buffer[kRowChunk], avg_buffer[kRowChunk], sq_buffer[kRowChunk];
  const C* g = computed_row(grad, count, grad_buffer);
  if (unscale) {
    unscale_vector(c.unscale, count, g, grad_buffer, grad);
    g = grad_buffer;
  }
  computed_row(param, count, param_buffer);
  computed_row(exp_avg, count, avg_buffer);
  computed_row(exp_avg_sq, count, sq_buffer);
  C* p = writable_row(param, param_buffer);
  C* m = writable_row(exp_avg, avg_buffer);
  C* v = writable_row(exp_avg_sq, sq_buffer);
  update_vector<L2, Late>(c, count, g, p, m, v);
  store_row(param, p, count);
  store_row(exp_avg, m, count);
  store_row(exp_avg_sq, v, count);
}

// Elements [first, last) of one tensor.
template <class T, class S, bool L2, bool Late>
void update_range(const AdamCoefficients<ComputeOf<T>>& c, bool unscale, const AdamOperands& in,
                  size_t tensor, int64_t first, int64_t last) {
  T* grad = in.grad(tensor).as<T>() + first;
  T* param = in.param(tensor).as<T>() + first;
  S* exp_avg = in.exp_avg(tensor).as<S>() + first;
  S* exp_avg_sq = in.exp_avg_sq(tensor).as<S>() + first;
  if constexpr (!kIsHalf<T>)
    if (!unscale) return update_vector<L2, Late>(c, last - first, grad, param, exp_avg, exp_avg_sq);
  for_each_chunk(last - first, [&](int64_t at, int64_t count) {
    update_piece<T, S, L2, Late>(c, unscale, count, grad + at, param + at, exp_avg + at,
                                 exp_avg_sq + at);
  });
}

size_t workspace_bytes(const StepFacts& facts) {
  const auto tensors = static_cast<size_t>(facts.node().attrs.integer("tensors"));
  return tensors * sizeof(AdamCoefficients<double>) + (tensors + 1) * sizeof(int64_t);
}

template <class T, class S>
void step(const KernelArgs& args, const AdamSettings& settings) {
  using C = ComputeOf<T>;
  const AdamOperands in{args.in};
  const bool unscale = in.grad_scale() != nullptr;
  const double lr = in.lr() ? static_cast<double>(*in.lr()) : settings.lr;
  const double scale = unscale ? static_cast<double>(*in.grad_scale()) : 1.0;
  auto* workspace = static_cast<char*>(args.workspace);
  void* behind = workspace + in.count() * sizeof(AdamCoefficients<double>);
  auto* coefficients = static_cast<AdamCoefficients<C>*>(args.workspace);
  float previous = -1;
  for (size_t i = 0; i < in.count(); ++i) {
    const float count = *in.step(i) += 1.0f;
    coefficients[i] =
        count == previous ? coefficients[i - 1] : adam_coefficients<C>(settings, lr, count, scale);
    previous = count;
  }
  const TensorShares shares(static_cast<int64_t*>(behind), in.count(),
                            [&](size_t i) { return in.param(i).sizes[0]; });
  const auto run = [&]<bool L2, bool Late> {
    shares.run(args.context, [&](size_t i, int64_t first, int64_t last) {
      update_range<T, S, L2, Late>(coefficients[i], unscale, in, i, first, last);
    });
  };
  if (settings.mode == AdamMode::Transformers) return run.template operator()<false, true>();
  // Without weight decay L2 adds nothing, not even 0 times an infinite parameter.
  if (settings.mode == AdamMode::L2 && settings.weight_decay != 0)
    return run.template operator()<true, false>();
  run.template operator()<false, false>();
}

void run_adam(const KernelArgs& args) {
  const AdamOperands in{args.in};
  if (in.count() == 0 || (in.found_inf() && *in.found_inf() != 0)) return;
  const AdamSettings settings = adam_settings(args.facts.node().attrs);
  dispatch_float(in.param(0).dtype, [&]<class T> {
    if (in.exp_avg(0).dtype == in.param(0).dtype)
      step<T, T>(args, settings);
    else
      step<T, ComputeOf<T>>(args, settings);
  });
}

REGISTER_CPU_KERNEL({.op = "FusedAdam",
                     .name = "fused_adam_cpu",
                     .dtypes = kAllFloats,
                     .run = run_adam,
                     .workspace_bytes = workspace_bytes,
                     .inplace = true});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
