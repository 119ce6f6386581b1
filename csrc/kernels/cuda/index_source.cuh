// Indices of int64 or int32 on the device, checked (device_check.cuh).
#pragma once

#include "kernels/cuda/device_check.cuh"

namespace ortmodule::cuda {

struct IndexSource {
  const void* data = nullptr;
  bool wide = true;
  int64_t size = 0;     // of the indexed dimension
  const char* op = "";  // for the emulation's message

  IndexSource(const TensorView& indices, int64_t dimension, const char* op_name)
      : data(indices.data), wide(indices.dtype == DType::Int64), size(dimension), op(op_name) {}

  /// The index at a position, counted from the front.
  __device__ __forceinline__ int64_t at(int64_t position) const {
    const int64_t index = wide ? static_cast<const int64_t*>(data)[position]
                               : static_cast<const int32_t*>(data)[position];
    const int64_t from_front = index < 0 ? index + size : index;
    ORTM_DEVICE_CHECK(from_front >= 0 && from_front < size,
                      "indices lie in [-size, size) of the indexed dimension", "[", op,
                      "] indices must lie in [", -size, ", ", size, "), but found ", index,
                      " at position ", position);
    return from_front;
  }
};

}  // namespace ortmodule::cuda
