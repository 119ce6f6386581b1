// The gradients of the gradient ops of norms.
#pragma once

#include <functional>

#include "ops/grad_context.h"

namespace ortmodule {

/// How a norm groups the elements of x. All values are in the type of the statistics.
struct NormStatistics {
  Handle normalized;   // xh: (x - mean) * inv_std_dev, or x * inv_std_dev without a mean
  Handle inv_std_dev;  // broadcasts to x
  /// The mean over the elements that share statistics; broadcasts to x.
  std::function<Handle(Handle)> mean;
  /// A value per element of scale as one that broadcasts to x.
  std::function<Handle(Handle)> spread;
};

/// The rule of <Norm>Grad (dy, x, scale, statistics...) -> dx, dscale, dbias. The statistics are
/// functions of x, whose gradient includes theirs: the op must have them as non-differentiable.
///
/// With s = scale * dy, r = inv_std_dev and P(h) = r * (h - mean(h) - xh * mean(h * xh)), which is
/// its own transpose, dx = P(s), dscale = sum(dy * xh) and dbias = sum(dy). Where u, v and b are
/// the gradients of these:
///     d dy    = scale * P(u) + xh * v + b
///     d scale = sum(dy * P(u))
///     d x     = P(v * dy - r * (u * mean(s * xh) + s * mean(u * xh))) - xh * r * mean(s * P(u))
Grads norm_grad_grad(GradContext& c, const NormStatistics& statistics);

/// The axes from attribute `axis` on, of operands of rank `rank`.
Dims normalized_axes(const GradContext& c, size_t rank);

/// Values of operands in the type of the statistics (operand `statistic`).
Handle in_statistics_type(GradContext& c, Handle value, size_t statistic);

}  // namespace ortmodule
