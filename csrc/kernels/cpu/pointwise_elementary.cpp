// Elementary functions of the pointwise group. What no hot loop of training needs comes from the
// standard library, element by element.
#include <cmath>

#include "kernels/cpu/pointwise_op.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

#define ORTM_FUNCTOR(name, expression) \
  struct name {                        \
    template <class T>                 \
    T operator()(T x) const {          \
      return expression;               \
    }                                  \
  };

ORTM_FUNCTOR(Exp, fast_exp(x))
ORTM_FUNCTOR(Erf, fast_erf(x))
ORTM_FUNCTOR(Log, std::log(x))
ORTM_FUNCTOR(Log1p, std::log1p(x))
ORTM_FUNCTOR(Expm1, std::expm1(x))
ORTM_FUNCTOR(Sqrt, std::sqrt(x))
ORTM_FUNCTOR(Rsqrt, T(1) / std::sqrt(x))
ORTM_FUNCTOR(Reciprocal, T(1) / x)
ORTM_FUNCTOR(Sin, std::sin(x))
ORTM_FUNCTOR(Cos, std::cos(x))
ORTM_FUNCTOR(Tan, std::tan(x))
ORTM_FUNCTOR(Asin, std::asin(x))
ORTM_FUNCTOR(Acos, std::acos(x))
ORTM_FUNCTOR(Atan, std::atan(x))
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
  T operator()(T x) const {
    return x;
  }
};

struct Pow {
  template <class T>
  T operator()(T a, T b) const {
    return std::pow(a, b);
  }
  int64_t operator()(int64_t a, int64_t b) const {
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
  int64_t operator()(int64_t a) const { return Pow()(a, 2); }
};
struct IntegerCube {
  int64_t operator()(int64_t a) const { return Pow()(a, 3); }
};
struct Atan2 {
  template <class T>
  T operator()(T a, T b) const {
    return std::atan2(a, b);
  }
};

constexpr MicroOp kElementary[] = {
    ORTM_FLOAT_ROWS("Exp", unary_formula, Exp),
    ORTM_FLOAT_ROWS("Erf", unary_formula, Erf),
    ORTM_FLOAT_ROWS("Log", unary, Log),
    ORTM_FLOAT_ROWS("Log1p", unary, Log1p),
    ORTM_FLOAT_ROWS("Expm1", unary, Expm1),
    ORTM_FLOAT_ROWS("Sqrt", unary, Sqrt),
    ORTM_FLOAT_ROWS("Rsqrt", unary, Rsqrt),
    ORTM_FLOAT_ROWS("Reciprocal", unary, Reciprocal),
    ORTM_FLOAT_ROWS("Sin", unary, Sin),
    ORTM_FLOAT_ROWS("Cos", unary, Cos),
    ORTM_FLOAT_ROWS("Tan", unary, Tan),
    ORTM_FLOAT_ROWS("Asin", unary, Asin),
    ORTM_FLOAT_ROWS("Acos", unary, Acos),
    ORTM_FLOAT_ROWS("Atan", unary, Atan),
    ORTM_FLOAT_ROWS("Sinh", unary, Sinh),
    ORTM_FLOAT_ROWS("Cosh", unary, Cosh),
    ORTM_FLOAT_ROWS("Floor", unary, Floor),
    ORTM_INTEGER_ROW("Floor", unary, Identity),
    ORTM_FLOAT_ROWS("Ceil", unary, Ceil),
    ORTM_INTEGER_ROW("Ceil", unary, Identity),
    ORTM_FLOAT_ROWS("Round", unary, Round),
    ORTM_INTEGER_ROW("Round", unary, Identity),
    ORTM_FLOAT_ROWS("Trunc", unary, Trunc),
    ORTM_INTEGER_ROW("Trunc", unary, Identity),
    ORTM_FLOAT_ROWS("Pow", binary, Pow),
    ORTM_INTEGER_ROW("Pow", binary, Pow),
    ORTM_FLOAT_ROWS("Pow.2", unary, Square),
    ORTM_INTEGER_ROW("Pow.2", unary, IntegerSquare),
    ORTM_FLOAT_ROWS("Pow.3", unary, Cube),
    ORTM_INTEGER_ROW("Pow.3", unary, IntegerCube),
    ORTM_FLOAT_ROWS("Pow.half", unary, Sqrt),
    ORTM_FLOAT_ROWS("Pow.minus_half", unary, Rsqrt),
    ORTM_FLOAT_ROWS("Pow.minus_1", unary, Reciprocal),
    ORTM_FLOAT_ROWS("Pow.minus_2", unary, InverseSquare),
    ORTM_FLOAT_ROWS("Atan2", binary, Atan2),
};

}  // namespace

std::span<const MicroOp> elementary_ops() { return kElementary; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
