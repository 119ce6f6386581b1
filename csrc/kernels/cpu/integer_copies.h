// Copies of the integer kernels for processors with AVX-512 VNNI: those of Isa::Avx512 whose
// kernels also ask the processor, and win by priority.
#pragma once

#include "kernels/cpu/cpu_kernel.h"

namespace ortmodule {

namespace isa_of {
inline constexpr Isa avx512_vnni = Isa::Avx512;
}  // namespace isa_of

inline namespace ORTM_ISA {

#if defined(__AVX512VNNI__)
inline constexpr int kIntegerPriority = 1;
/// KernelDef::unsupported of these kernels.
inline Reason other_copy_runs(const StepFacts&) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512vnni")) return "the processor has no AVX-512 VNNI";
  return {};
}
#else
inline constexpr int kIntegerPriority = 0;
inline Reason other_copy_runs(const StepFacts&) { return {}; }
#endif

}  // namespace ORTM_ISA
}  // namespace ortmodule
