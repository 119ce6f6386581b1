// Elementary functions: formulas and rows for the CPU and CUDA pointwise groups. What hardly any
// model needs comes from the standard library, element by element.
#pragma once

#include <cmath>

#include "kernels/pointwise_row.h"
#include "kernels/scalar_elementary.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace formulas {

#define ORTM_FUNCTOR(name, expression) \
  struct name {                        \
    template <class T>                 \
    ORTM_HD T operator()(T x) const {  \
      return expression;               \
    }                                  \
  };

ORTM_FUNCTOR(Exp, whole_exp(x))
ORTM_FUNCTOR(Erf, fast_erf(x))
ORTM_FUNCTOR(Log, fast_log(x))
ORTM_FUNCTOR(Log1p, fast_log1p(x))
ORTM_FUNCTOR(Expm1, fast_expm1(x))
ORTM_FUNCTOR(Sqrt, std::sqrt(x))
ORTM_FUNCTOR(Rsqrt, T(1) / std::sqrt(x))
ORTM_FUNCTOR(Reciprocal, T(1) / x)
ORTM_FUNCTOR(Sin, fast_sin(x))
ORTM_FUNCTOR(Cos, fast_cos(x))
ORTM_FUNCTOR(Tan, std::tan(x))
ORTM_FUNCTOR(Asin, fast_asin(x))
ORTM_FUNCTOR(Acos, fast_acos(x))
ORTM_FUNCTOR(Atan, fast_atan(x))
ORTM_FUNCTOR(Sinh, std::sinh(x))
ORTM_FUNCTOR(Cosh, std::cosh(x))
ORTM_FUNCTOR(Floor, std::floor(x))
ORTM_FUNCTOR(Ceil, std::ceil(x))
ORTM_FUNCTOR(Round, std::nearbyint(x))  // ties to even
ORTM_FUNCTOR(Trunc, std::trunc(x))

// Powers with the literal exponents that PyTorch computes without pow.
ORTM_FUNCTOR(Square, x* x)
ORTM_FUNCTOR(Cube, x* x* x)
ORTM_FUNCTOR(InverseSquare, T(1) / (x * x))

#undef ORTM_FUNCTOR

struct Identity {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return x;
  }
};

struct Pow {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    return fast_pow(a, b);
  }
  ORTM_HD int64_t operator()(int64_t a, int64_t b) const {
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    uint64_t result = 1, base = static_cast<uint64_t>(a);
    for (; b; b >>= 1) {
      if (b & 1) result *= base;
      base *= base;
    }
    return static_cast<int64_t>(result);
  }
};
struct IntegerSquare {
  ORTM_HD int64_t operator()(int64_t a) const { return Pow()(a, 2); }
};
struct IntegerCube {
  ORTM_HD int64_t operator()(int64_t a) const { return Pow()(a, 3); }
};
struct Atan2 {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    return std::atan2(a, b);
  }
};

}  // namespace formulas
}  // namespace ORTM_ISA
}  // namespace ortmodule

/// ROW(name, loop, functor, type of the operands, type of the result).
#define ORTM_ELEMENTARY_OPS(ROW)                            \
  ORTM_FLOAT_ROWS(ROW, "Exp", unary_formula, Exp)           \
  ORTM_FLOAT_ROWS(ROW, "Erf", unary_formula, Erf)           \
  ORTM_FLOAT_ROWS(ROW, "Log", unary_long_formula, Log)      \
  ORTM_FLOAT_ROWS(ROW, "Log1p", unary_long_formula, Log1p)  \
  ORTM_FLOAT_ROWS(ROW, "Expm1", unary_long_formula, Expm1)  \
  ORTM_FLOAT_ROWS(ROW, "Sqrt", unary, Sqrt)                 \
  ORTM_FLOAT_ROWS(ROW, "Rsqrt", unary, Rsqrt)               \
  ORTM_FLOAT_ROWS(ROW, "Reciprocal", unary, Reciprocal)     \
  ORTM_FLOAT_ROWS(ROW, "Sin", unary_long_formula, Sin)      \
  ORTM_FLOAT_ROWS(ROW, "Cos", unary_long_formula, Cos)      \
  ORTM_FLOAT_ROWS(ROW, "Tan", unary_library, Tan)           \
  ORTM_FLOAT_ROWS(ROW, "Asin", unary_long_formula, Asin)    \
  ORTM_FLOAT_ROWS(ROW, "Acos", unary_long_formula, Acos)    \
  ORTM_FLOAT_ROWS(ROW, "Atan", unary_long_formula, Atan)    \
  ORTM_FLOAT_ROWS(ROW, "Sinh", unary_library, Sinh)         \
  ORTM_FLOAT_ROWS(ROW, "Cosh", unary_library, Cosh)         \
  ORTM_FLOAT_ROWS(ROW, "Floor", unary, Floor)               \
  ORTM_INTEGER_ROW(ROW, "Floor", unary, Identity)           \
  ORTM_FLOAT_ROWS(ROW, "Ceil", unary, Ceil)                 \
  ORTM_INTEGER_ROW(ROW, "Ceil", unary, Identity)            \
  ORTM_FLOAT_ROWS(ROW, "Round", unary, Round)               \
  ORTM_INTEGER_ROW(ROW, "Round", unary, Identity)           \
  ORTM_FLOAT_ROWS(ROW, "Trunc", unary, Trunc)               \
  ORTM_INTEGER_ROW(ROW, "Trunc", unary, Identity)           \
  ORTM_FLOAT_ROWS(ROW, "Pow", binary_long_formula, Pow)     \
  ORTM_INTEGER_ROW(ROW, "Pow", binary_library, Pow)         \
  ORTM_FLOAT_ROWS(ROW, "Pow.2", unary, Square)              \
  ORTM_INTEGER_ROW(ROW, "Pow.2", unary, IntegerSquare)      \
  ORTM_FLOAT_ROWS(ROW, "Pow.3", unary, Cube)                \
  ORTM_INTEGER_ROW(ROW, "Pow.3", unary, IntegerCube)        \
  ORTM_FLOAT_ROWS(ROW, "Pow.half", unary, Sqrt)             \
  ORTM_FLOAT_ROWS(ROW, "Pow.minus_half", unary, Rsqrt)      \
  ORTM_FLOAT_ROWS(ROW, "Pow.minus_1", unary, Reciprocal)    \
  ORTM_FLOAT_ROWS(ROW, "Pow.minus_2", unary, InverseSquare) \
  ORTM_FLOAT_ROWS(ROW, "Atan2", binary_library, Atan2)
