// How the kernels of reductions see x: its dimensions in the order of memory, row-major or
// channels-last, the same on all devices.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel.h"

namespace ortmodule {

/// Neighbours in memory that are all reduced or all kept, as one dimension.
struct DimGroup {
  int64_t size = 1;
  bool reduced = true;
};

/// The dimensions of x from the outermost in memory to the innermost, without those of size 1;
/// groups of both kinds alternate. At least one.
std::vector<DimGroup> reduced_dims(const StepFacts& facts);

/// Why results found in the order of x's memory would not be row-major, or nothing.
Reason results_out_of_order(const StepFacts& facts);

}  // namespace ortmodule
