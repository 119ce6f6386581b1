// The order of a packed batch, torch's PackedSequence: the rows of a step directly behind those of
// the step before, of the sequences that have this step.
#pragma once

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/recurrent_shape.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Writes the first row of each step to `starts`, and the number of all rows behind them. Throws
/// Error unless `batch_sizes` [steps] descend from `batch` and their sum is `rows`.
inline void fill_packed_starts(const TensorView& batch_sizes, int64_t batch, int64_t rows,
                               int64_t* starts) {
  const int64_t* sizes = batch_sizes.as<int64_t>();
  const int64_t steps = batch_sizes.sizes[0];
  if (steps == 0 || sizes[0] != batch)
    throw Error(str("[PackedSequence] the first of the batch sizes must be the size of the batch, ",
                    batch, ", but found ", steps == 0 ? 0 : sizes[0]));
  starts[0] = 0;
  for (int64_t step = 0; step < steps; ++step) {
    if (sizes[step] < 0 || (step > 0 && sizes[step] > sizes[step - 1]))
      throw Error(str("[PackedSequence] batch sizes must be in descending order, but found ",
                      sizes[step], " at step ", step));
    starts[step + 1] = starts[step] + sizes[step];
  }
  if (starts[steps] != rows)
    throw Error(str("[PackedSequence] the sum of the batch sizes must be the number of rows, ",
                    rows, ", but found ", starts[steps]));
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
