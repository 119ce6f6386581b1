// A pointwise group as CUDA C++: straight-line code instead of the instructions that
// pointwise_group.cu interprets, out of the same formulas and so with the same bits. Sizes,
// strides, addresses, literals and streams of random numbers stay parameters, so that equal layers
// and other batch sizes share one text.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/pointwise_program.h"

namespace ortmodule::cuda {

/// The text, and the launches that it is for.
struct PointwiseSource {
  std::string text;  // of the kernel `name`, whose parameter is a PointwiseLaunch
  std::string name;
  int vectors = 1;                 // of a thread, one block's vector apart
  int each = kPointwisePerThread;  // elements of a vector
  int rank = 0;
  bool draws_in_order = false;            // random words come in blocks: the first index starts one
  std::vector<PointwiseAccess> accesses;  // by tensor
  std::vector<bool> moves_vectors;

  /// Whether the code computes this launch, pointed for `each` elements. Unaligned views of the
  /// user's and the last part of a tensor that was cut may differ from what the plan knew.
  bool fits(const PointwiseLaunch& launch) const;
};

/// Why the group must be interpreted, or nothing. float64 and functions of CUDA's own library have
/// bits that depend on the compiler's version.
Reason pointwise_source_unsupported(const PointwiseProgram& program);

/// The text depends on nothing but the program and the kinds of access, `name` included.
PointwiseSource pointwise_source(const PointwiseProgram& program, const std::string& name);

}  // namespace ortmodule::cuda
