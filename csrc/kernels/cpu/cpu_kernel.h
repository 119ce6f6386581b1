// What every CPU kernel's source starts from: its instruction set, registration and threads.
// Each source of kernels/cpu is compiled once per instruction set with -DORTM_ISA=<name> and puts
// its code in `inline namespace ORTM_ISA`, so that the copies do not collide.
#pragma once

#include <algorithm>

#include "kernels/cpu_kernel_entry.h"
#include "kernels/scalar_math.h"

/// The vectorizer may assume that iterations are independent. Operands either do not overlap or are
/// the same elements (in-place), for which that holds.
#define ORTM_SIMD _Pragma("GCC ivdep")

/// In front of a short loop over vectors: as a loop it would keep them in memory.
#define ORTM_UNROLL _Pragma("GCC unroll 32")

namespace ortmodule {

// Maps the token ORTM_ISA to its enumerator.
namespace isa_of {
inline constexpr Isa baseline = Isa::Baseline;
inline constexpr Isa avx2 = Isa::Avx2;
inline constexpr Isa avx512 = Isa::Avx512;
inline constexpr Isa portable = Isa::Baseline;
}  // namespace isa_of

inline namespace ORTM_ISA {

/// body(begin, end) over [0, count): at once if that is not worth a second thread.
template <class Body>
inline void parallel_ranges(const KernelContext& context, int64_t count, int64_t grain,
                            const Body& body) {
  if (count <= 0) return;
  if (count <= grain || !context.parallel_for) {
    body(int64_t{0}, count);
  } else {
    context.parallel_for(count, grain, std::cref(body));
  }
}

/// Items per thread such that a thread gets about 32k elements of `per_item` elements each.
inline int64_t grain_for(int64_t per_item) {
  return std::max<int64_t>(1, 32768 / std::max<int64_t>(per_item, 1));
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace ORTM_ISA
}  // namespace ortmodule

/// REGISTER_CPU_KERNEL({.op = "Softmax", .name = "softmax_cpu", ...}); emits a constant and no
/// initialiser: an initialiser would be code of this instruction set that every machine runs.
#define REGISTER_CPU_KERNEL(...)                                    \
  ORTM_CPU_KERNEL_ENTRY(ORTM_KERNEL_CONCAT(make_kernel_, __LINE__), \
                        ORTM_KERNEL_CONCAT(kernel_, __LINE__), __VA_ARGS__)
#define ORTM_CPU_KERNEL_ENTRY(make, entry, ...)                                       \
  static ::ortmodule::KernelDef make() { return ::ortmodule::KernelDef __VA_ARGS__; } \
  [[gnu::section("ortm_cpu_kernels"), gnu::used,                                      \
    gnu::retain]] static constinit const ::ortmodule::CpuKernelEntry entry = {        \
      &make, ::ortmodule::isa_of::ORTM_ISA}
