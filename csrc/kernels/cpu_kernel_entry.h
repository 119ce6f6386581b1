// How the registry finds the CPU kernels: a table of constants that the linker gathers, so that
// code for an instruction set does not run before the registry has asked for it, not even to
// register.
#pragma once

#include "kernels/kernel.h"

namespace ortmodule {

/// An element of the section "ortm_cpu_kernels".
struct CpuKernelEntry {
  KernelDef (*make)();  // code of that instruction set
  Isa isa;
};
// However compilers align such a constant, the section has no gaps.
static_assert(sizeof(CpuKernelEntry) == 2 * sizeof(void*));

}  // namespace ortmodule
