// Tensors of callers and results, in host memory.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/dtype.h"
#include "base/layout.h"
#include "importer/import_model.h"
#include "runtime/device_number.h"

namespace ortmodule {

/// A tensor in memory of the caller.
struct HostTensorView {
  DType dtype = DType::Undefined;
  Sizes sizes;
  const void* data = nullptr;  // the first element
  Sizes strides{};             // in elements, of any sign; empty: row-major
  int device = kOnHost;        // of the memory
  bool texts = false;          // int64 numbers of texts (RunTexts)
  bool copied = false;         // without data: a run would copy it
};

/// Memory of the caller that an output is written to.
struct HostTarget {
  DType dtype = DType::Undefined;
  Sizes sizes;
  void* data = nullptr;  // null on a device: the run allocates memory there
  Sizes strides{};       // as above, no two elements at one place
  int device = kOnHost;
};

/// By output; none: the run allocates it.
using HostTargets = std::vector<std::optional<HostTarget>>;

/// What is fed for an input: a tensor, the tensors of a sequence, keys and values of a map, or an
/// empty optional.
struct HostFeed {
  std::vector<HostTensorView> tensors;
  bool is_sequence = false;
  bool is_map = false;

  HostFeed() = default;
  HostFeed(HostTensorView tensor) { tensors.push_back(std::move(tensor)); }  // NOLINT: one tensor
};

/// A row-major tensor that owns its memory.
struct HostTensor {
  DType dtype = DType::Undefined;
  Sizes sizes;
  Buffer memory;
  int device = kOnHost;

  int64_t byte_count() const { return element_count(sizes) * static_cast<int64_t>(size_of(dtype)); }
};

/// An output: a tensor, the tensors of a sequence, or an empty optional. Of texts there are int64
/// numbers (RunTexts), of maps a matrix [maps, keys].
struct HostResult {
  std::vector<HostTensor> tensors;
  bool is_sequence = false;
  OutputMeaning meaning{};
};

}  // namespace ortmodule
