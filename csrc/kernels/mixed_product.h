// Products of bfloat16 that also give float32, round a left factor of float32, and add to their
// result (operand 2 of Gemm, if it is the result). Graphs know none: other kernels ask by name.
#pragma once

#include <string_view>

namespace ortmodule {

inline constexpr std::string_view kMixedMatMul = "fused_matmul_pairs_cpu";
inline constexpr std::string_view kMixedGemm = "gemm_pairs_cpu";

}  // namespace ortmodule
