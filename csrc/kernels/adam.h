// Adam of one element, once for CPU and CUDA, and the operands of a step over many tensors.
//
//   m <- m + (1 - beta1) (g - m),   v <- beta2 v + (1 - beta2) g^2
//   p <- p - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)
//
// after D. Kingma, J. Ba, "Adam" (arXiv:1412.6980); decoupled weight decay after I. Loshchilov,
// F. Hutter (arXiv:1711.05101). Operations and their order are those of torch.optim.Adam without
// `fused`, from which results differ by roundings of torch's lerp and root only.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/dtype_dispatch.h"
#include "kernels/kernel.h"

namespace ortmodule {

/// Where weight decay acts; the numbers are those of the Python enumeration.
enum class AdamMode : uint8_t {
  L2 = 0,            // added to the gradient
  Transformers = 1,  // p -= lr decay p after the update, whose epsilon stands beside sqrt(v)
  Torch = 2,         // p -= lr decay p before the update
};

/// What all elements of a parameter group share, as the user gave it.
struct AdamSettings {
  AdamMode mode = AdamMode::Transformers;
  bool bias_correction = true;
  double lr = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
};

/// The kernels' contract, for n tensors (op "FusedAdam", attributes of AdamSettings' names and
/// `tensors` = n). Inputs 5 i to 5 i + 4: parameter, gradient, exp_avg, exp_avg_sq (each a dense
/// vector, gradients in the parameter's type, both moments in one type) and the step's count
/// (float32, one element), which the kernel raises. Then three single float32 or nothing: the
/// learning rate, which replaces the attribute; the scale, by which gradients are divided, in
/// place; a number that is not 0 if the step is to be skipped. Counts and single numbers lie in
/// memory of the kernel's device.
struct AdamOperands {
  std::span<const TensorView> in;

  size_t count() const { return (in.size() - 3) / 5; }
  const TensorView& param(size_t i) const { return in[5 * i]; }
  const TensorView& grad(size_t i) const { return in[5 * i + 1]; }
  const TensorView& exp_avg(size_t i) const { return in[5 * i + 2]; }
  const TensorView& exp_avg_sq(size_t i) const { return in[5 * i + 3]; }
  float* step(size_t i) const { return in[5 * i + 4].as<float>(); }
  const float* lr() const { return in[in.size() - 3].as<float>(); }
  const float* grad_scale() const { return in[in.size() - 2].as<float>(); }
  const float* found_inf() const { return in[in.size() - 1].as<float>(); }
};

inline namespace ORTM_ISA {

inline AdamSettings adam_settings(const Attrs& attrs) {
  return {static_cast<AdamMode>(attrs.integer("mode")),
          attrs.flag("bias_correction"),
          attrs.number("lr"),
          attrs.number("beta1"),
          attrs.number("beta2"),
          attrs.number("epsilon"),
          attrs.number("weight_decay")};
}

/// What all elements of one tensor share in one step, in the computation type.
template <class C>
struct AdamCoefficients {
  C l2;          // times p, added to the gradient
  C decay;       // factor of p before the update
  C late_decay;  // times p, added after the update
  C lerp;        // times (g - m), added to m, or to g: torch.lerp starts from the nearer end
  bool from_gradient;
  C beta2, gradient_square;
  C root;  // divisor of sqrt(v)
  C epsilon;
  C rate;     // times m / (sqrt(v) / root + epsilon), added
  C unscale;  // factor of the gradient
};

/// `step` counts from 1. Computed in double and rounded once.
template <class C>
ORTM_HD AdamCoefficients<C> adam_coefficients(const AdamSettings& s, double lr, double step,
                                              double grad_scale) {
  const double correction1 = s.bias_correction ? 1.0 - std::pow(s.beta1, step) : 1.0;
  const double correction2 = s.bias_correction ? 1.0 - std::pow(s.beta2, step) : 1.0;
  const bool late = s.mode == AdamMode::Transformers;
  const double decay = lr * s.weight_decay;
  AdamCoefficients<C> c;
  c.l2 = static_cast<C>(s.mode == AdamMode::L2 ? s.weight_decay : 0.0);
  c.decay = static_cast<C>(s.mode == AdamMode::Torch ? 1.0 - decay : 1.0);
  c.late_decay = static_cast<C>(late ? -decay : 0.0);
  c.from_gradient = s.beta1 <= 0.5;
  c.lerp = static_cast<C>(1.0 - s.beta1);
  if (c.from_gradient) c.lerp -= C(1);
  c.beta2 = static_cast<C>(s.beta2);
  c.gradient_square = static_cast<C>(1.0 - s.beta2);
  c.root = static_cast<C>(late ? 1.0 : std::sqrt(correction2));
  c.epsilon = static_cast<C>(s.epsilon);
  c.rate =
      static_cast<C>(late ? -(lr * std::sqrt(correction2) / correction1) : -(lr / correction1));
  c.unscale = static_cast<C>(1.0 / grad_scale);
  return c;
}

ORTM_HD float fused_multiply_add(float a, float b, float c) { return multiply_add(a, b, c); }
ORTM_HD double fused_multiply_add(double a, double b, double c) {
#if defined(__FMA__) || defined(__CUDA_ARCH__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

/// One element; `grad` is unscaled. L2 and Late say at compile time that the weight decay acts on
/// the gradient or after the update; neither: before it.
template <bool L2, bool Late, class C>
ORTM_HD void adam_element(const AdamCoefficients<C>& c, C grad, C& param, C& exp_avg,
                          C& exp_avg_sq) {
  const C g = L2 ? fused_multiply_add(param, c.l2, grad) : grad;
  const C m = fused_multiply_add(c.lerp, g - exp_avg, select(c.from_gradient, g, exp_avg));
  const C v = fused_multiply_add(c.gradient_square * g, g, exp_avg_sq * c.beta2);
  const C root = Late ? std::sqrt(v) : std::sqrt(v) / c.root;
  const C decayed = L2 || Late ? param : param * c.decay;
  const C updated = decayed + c.rate * m / (root + c.epsilon);
  // Without weight decay nothing is added, not even 0 times an infinite parameter.
  const C late = fused_multiply_add(updated, c.late_decay, updated);
  param = Late ? select(c.late_decay != C(0), late, updated) : updated;
  exp_avg = m;
  exp_avg_sq = v;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
