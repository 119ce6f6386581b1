// Copies of the bfloat16 kernels for processors with AVX-512 BF16: those of Isa::Avx512 whose
// kernels also ask the processor. Others have no such kernels.
#pragma once

#include "kernels/cpu/cpu_kernel.h"

namespace ortmodule {

namespace isa_of {
inline constexpr Isa avx512_bf16 = Isa::Avx512;
}  // namespace isa_of

}  // namespace ortmodule
