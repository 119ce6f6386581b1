// Indices of int64 or int32 on the device, checked (device_check.cuh).
#pragma once

#include "kernels/cuda/device_check.cuh"
#include "kernels/indices.h"

namespace ortmodule::cuda {

struct IndexSource {
  const void* data = nullptr;
  bool wide = true;
  int64_t size = 0;     // of the indexed dimension
  int64_t least = 0;    // index
  const char* op = "";  // for the emulation's message

  /// The indices are operand 1.
  IndexSource(const KernelArgs& args, int64_t dimension, const char* op_name)
      : data(args.in[1].data),
        wide(args.in[1].dtype == DType::Int64),
        size(dimension),
        least(least_index(args.facts, dimension)),
        op(op_name) {}

  /// The index at a position, counted from the front.
  __device__ __forceinline__ int64_t at(int64_t position) const {
    const int64_t index = wide ? static_cast<const int64_t*>(data)[position]
                               : static_cast<const int32_t*>(data)[position];
    ORTM_DEVICE_CHECK(index >= least && index < size, "indices lie within the indexed dimension",
                      "[", op, "] indices must lie in [", least, ", ", size, "), but found ", index,
                      " at position ", position);
    return index < 0 ? index + size : index;
  }
};

}  // namespace ortmodule::cuda
