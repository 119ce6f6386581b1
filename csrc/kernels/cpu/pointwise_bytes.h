// Pointwise groups that are functions of one byte.
#pragma once

#include "kernels/cpu/pointwise_program.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Lets the program of such a group look results up (PointwiseProgram::of_each_byte).
void add_byte_table(const StepFacts& facts, PointwiseProgram& program);
/// Runs such a program.
void run_by_table(const PointwiseProgram& program, const KernelArgs& args);

}  // namespace ORTM_ISA
}  // namespace ortmodule
