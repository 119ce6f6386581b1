// The layouts that kernels take and give.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace ortmodule {

/// Whether the kernel takes operand `i` in that layout, without a copy.
bool takes_layout(const KernelDef& kernel, size_t i, const Layout& layout);

/// Sets the strides of the outputs of `facts`, which are contiguous: of a pointwise group those
/// `wanted`, by output, where there is one. Returns the layout of each node of such a group, also
/// where no output of the step has it; else nothing.
std::vector<Layout> choose_output_layouts(bool pointwise, const KernelDef& kernel,
                                          const std::vector<Sizes>& wanted, StepFacts& facts);

}  // namespace ortmodule
