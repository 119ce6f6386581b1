// How the tables of pointwise ops are written. A family's header holds the functors, compiled for
// the CPU's instruction sets and for CUDA alike, and one list of rows, from which each device makes
// its own table: an op is added there and nowhere else.
#pragma once

#include "kernels/micro_params.h"
#include "kernels/scalar_math.h"
// What is compiled at run time (cuda/pointwise_source.h) needs the functors alone.
#if !defined(__CUDACC_RTC__)
#include "kernels/pointwise_facts.h"
#endif

namespace ortmodule {

/// How a row's functor is best looped over: `unary` and `binary` are cheap; those of `_formula` are
/// written over scalar_math.h and take vectors of floats; those of `_long_formula` do too, and
/// those of `_library` call the standard library, element by element: both are too large to be
/// inlined often.
enum class PointwiseLoop : uint8_t {
  unary,
  unary_formula,
  unary_long_formula,
  unary_library,
  binary,
  binary_formula,
  binary_long_formula,
  binary_library,
  where,
  dropout,
  uniform,
};

}  // namespace ortmodule

/// Checks of operands that only the CPU makes: on CUDA nothing can be thrown.
#if defined(__CUDA_ARCH__) || defined(ORTM_CUDA_EMULATION)
#define ORTM_CHECK_ON_CPU(...) static_cast<void>(0)
#else
#define ORTM_CHECK_ON_CPU(...) ORTM_CHECK(__VA_ARGS__)
#endif

#define ORTM_FLOAT_ROWS(ROW, name, loop, F) \
  ROW(name, loop, F, float, float)          \
  ROW(name, loop, F, double, double)
#define ORTM_INTEGER_ROW(ROW, name, loop, F) ROW(name, loop, F, int64_t, int64_t)
#define ORTM_BOOL_ROW(ROW, name, loop, F) ROW(name, loop, F, bool, bool)
#define ORTM_COMPARISON_ROWS(ROW, name, loop, F) \
  ROW(name, loop, F, float, bool)                \
  ROW(name, loop, F, double, bool)               \
  ROW(name, loop, F, int64_t, bool)              \
  ROW(name, loop, F, bool, bool)

namespace ortmodule {
inline namespace ORTM_ISA {

#if !defined(__CUDACC_RTC__)
/// F::configure for functors with attributes, else null.
template <class F>
constexpr auto configure_of() -> void (*)(const NodeFacts&, MicroParams&) {
  if constexpr (requires(const NodeFacts& node, MicroParams& p) { F::configure(node, p); }) {
    return &F::template configure<NodeFacts>;
  } else {
    return nullptr;
  }
}
#endif

/// Whether F draws random numbers.
template <class F>
constexpr bool is_random() {
  return requires { F::kIsRandom; };
}

/// A functor; one with attributes is constructed from them.
template <class F>
ORTM_HD F make_functor(const MicroParams& params) {
  if constexpr (std::is_constructible_v<F, const MicroParams&>) {
    return F(params);
  } else {
    (void)params;
    return F();
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
