// Pointwise groups that are one Cast of dense memory.
#pragma once

#include "kernels/cpu/pointwise_program.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Lets the program of such a group convert elements at once (PointwiseProgram::cast).
void add_direct_cast(const StepFacts& facts, PointwiseProgram& program);
/// Runs such a program.
void run_direct_cast(const PointwiseProgram& program, const KernelArgs& args);

}  // namespace ORTM_ISA
}  // namespace ortmodule
