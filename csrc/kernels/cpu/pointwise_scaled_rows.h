// Pointwise groups that scale rows, as a normalization by known statistics does.
#pragma once

#include "kernels/cpu/pointwise_program.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Lets the program of such a group keep what a row is scaled by in registers
/// (PointwiseProgram::scaled_rows).
void add_scaled_rows(const StepFacts& facts, PointwiseProgram& program);
/// Runs such a program.
void run_scaled_rows(const PointwiseProgram& program, const KernelArgs& args);

}  // namespace ORTM_ISA
}  // namespace ortmodule
