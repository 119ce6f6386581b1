// A pointwise group as CUDA threads interpret it: a short program for an accumulator machine, which
// travels as the kernel's parameter (pointwise_group.cu).
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/pointwise_launch.h"
#include "kernels/iteration.h"
#include "kernels/pointwise_facts.h"

namespace ortmodule::cuda {

struct PointwiseProgram {
  PointwiseLaunch launch;  // all but sizes, strides and addresses
  bool wide = false;       // values of 64 bits (float64, integers) occur
  IterationSpace space;    // one operand per tensor of `launch`
  std::vector<Compute> constant_types;
  size_t outputs = 0, inputs = 0;
};

/// Why no program can be made of this group, or nothing.
Reason pointwise_unsupported(const StepFacts& facts);
std::shared_ptr<const PointwiseProgram> compile_pointwise(const StepFacts& facts);

/// Fills in sizes, strides and accesses for a part of the program's space whose sizes are given,
/// for vectors of `each` elements; `offsets` are the operands' elements at its first position.
/// Addresses must be set before.
void point_launch(PointwiseLaunch& launch, const IterationSpace& space, const Coords& sizes,
                  const std::vector<int64_t>& offsets, int each = kPointwisePerThread);

}  // namespace ortmodule::cuda
