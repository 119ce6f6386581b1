// The order of a packed batch (cpu/packed_batch.h), whose batch sizes are in device memory.
#pragma once

#include "kernels/cuda/device_check.cuh"

namespace ortmodule::cuda {

/// One thread writes the first row of each step to `starts`, and the number of all rows behind
/// them. A broken rule stops the kernel (device_check.cuh).
template <class Size>
__global__ void fill_packed_starts_cuda(const Size* sizes, int64_t steps, int64_t batch,
                                        int64_t rows, int64_t* starts) {
  ORTM_DEVICE_CHECK(steps > 0 && sizes[0] == batch,
                    "the first of the batch sizes must be the size of the batch",
                    "[PackedSequence] the first of the batch sizes must be the size of the batch, ",
                    batch, ", but found ", steps == 0 ? 0 : sizes[0]);
  starts[0] = 0;
  for (int64_t step = 0; step < steps; ++step) {
    ORTM_DEVICE_CHECK(sizes[step] >= 0 && (step == 0 || sizes[step] <= sizes[step - 1]),
                      "batch sizes must be in descending order",
                      "[PackedSequence] batch sizes must be in descending order, but found ",
                      sizes[step], " at step ", step);
    starts[step + 1] = starts[step] + sizes[step];
  }
  ORTM_DEVICE_CHECK(starts[steps] == rows, "the sum of the batch sizes must be the number of rows",
                    "[PackedSequence] the sum of the batch sizes must be the number of rows, ",
                    rows, ", but found ", starts[steps]);
}

/// Fills `starts`, of one more element than `batch_sizes` has, for `rows` packed rows.
inline void fill_packed_starts(const TensorView& batch_sizes, int64_t batch, int64_t rows,
                               int64_t* starts, const KernelContext& context) {
  ORTM_LAUNCH(fill_packed_starts_cuda<int64_t>, grid_of(1), 1, 0, context,
              batch_sizes.as<int64_t>(), batch_sizes.sizes[0], batch, rows, starts);
}

}  // namespace ortmodule::cuda
