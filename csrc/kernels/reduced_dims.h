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

/// Why a kernel takes a reduction in no layout of x, or nothing.
Reason reduce_unsupported(const StepFacts& facts);

/// Why a kernel that goes through x in the order of its memory does not take it: its results would
/// not be row-major, or reduce_unsupported().
Reason in_order_unsupported(const StepFacts& facts);

}  // namespace ortmodule
