// Tensors of callers and results, in host memory.
#pragma once

#include <memory>

#include "base/buffer.h"
#include "base/dtype.h"
#include "base/layout.h"

namespace ortmodule {

/// A row-major tensor in memory of the caller.
struct HostTensorView {
  DType dtype = DType::Undefined;
  Sizes sizes;
  const void* data = nullptr;
};

/// A row-major tensor that owns its memory.
struct HostTensor {
  DType dtype = DType::Undefined;
  Sizes sizes;
  Buffer memory;

  int64_t byte_count() const {
    return element_count(sizes) * static_cast<int64_t>(size_of(dtype));
  }
};

}  // namespace ortmodule
