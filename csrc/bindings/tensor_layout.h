// Tensors that must lie in memory as a plan says.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/layout.h"

namespace ortmodule::bindings {

/// A copy of `x` with that layout, in which an expanded dim lies once.
at::Tensor copied(const at::Tensor& x, const Layout& layout);

/// Writes the values of `x` into `to`, which copied() gave for such a tensor.
void copy_values(const at::Tensor& to, const at::Tensor& x);

/// `x`, copied if it lies otherwise or is negated only by a bit.
at::Tensor laid_out(const at::Tensor& x, const Layout& layout);

}  // namespace ortmodule::bindings
