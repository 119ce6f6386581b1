// The order of a packed batch (cpu/packed_batch.h), whose batch sizes are in device memory.
#pragma once

#include "kernels/cuda/device_check.cuh"

namespace ortmodule::cuda {

/// One thread writes the first row of each step to `starts`, and the number of all rows behind
/// them. It reads nothing that it has written and asks for the order at the end, so that several
/// sizes are on their way at once. A broken rule stops the kernel (device_check.cuh).
template <class Size>
__global__ void fill_packed_starts_cuda(const Size* __restrict__ sizes, int64_t steps,
                                        int64_t batch, int64_t rows, int64_t* __restrict__ starts) {
  ORTM_DEVICE_CHECK(steps > 0 && sizes[0] == batch,
                    "the first of the batch sizes must be the size of the batch",
                    "[PackedSequence] the first of the batch sizes must be the size of the batch, ",
                    batch, ", but found ", steps == 0 ? 0 : sizes[0]);
  int64_t start = 0, most = batch, wrong = steps;
#pragma unroll 8
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t size = sizes[step];
    if (wrong == steps && (size < 0 || size > most)) wrong = step;
    starts[step] = start;
    start += size;
    most = size;
  }
  ORTM_DEVICE_CHECK(wrong == steps, "batch sizes must be in descending order",
                    "[PackedSequence] batch sizes must be in descending order, but found ",
                    sizes[wrong], " at step ", wrong);
  starts[steps] = start;
  ORTM_DEVICE_CHECK(start == rows, "the sum of the batch sizes must be the number of rows",
                    "[PackedSequence] the sum of the batch sizes must be the number of rows, ",
                    rows, ", but found ", start);
}

/// Fills `starts`, of one more element than `batch_sizes` has, for `rows` packed rows.
inline void fill_packed_starts(const TensorView& batch_sizes, int64_t batch, int64_t rows,
                               int64_t* starts, const KernelContext& context) {
  ORTM_LAUNCH(fill_packed_starts_cuda<int64_t>, grid_of(1), 1, 0, context,
              batch_sizes.as<int64_t>(), batch_sizes.sizes[0], batch, rows, starts);
}

}  // namespace ortmodule::cuda
