// Copies tensors to planned layouts.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/layout.h"

namespace ortmodule::bindings {

/// A copy of `x` with that layout. An expanded dim (stride 0) is stored once.
at::Tensor copied(const at::Tensor& x, const Layout& layout);

/// Copies `x` into `to`, a result of copied() for the same layout.
void copy_values(const at::Tensor& to, const at::Tensor& x);

/// `x`, or a copy if its layout differs or it has the negative bit.
at::Tensor laid_out(const at::Tensor& x, const Layout& layout);

}  // namespace ortmodule::bindings
