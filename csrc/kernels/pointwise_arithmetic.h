// Arithmetic, selection and bit operations: formulas and rows for the CPU and CUDA pointwise
// groups.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/pointwise_row.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace formulas {

// Integers wrap around, as in PyTorch; C++ leaves signed overflow open.
template <class T, class F>
ORTM_HD T wrapping(T a, T b, F f) {
  if constexpr (std::is_same_v<T, int64_t>) {
    return static_cast<T>(f(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
  } else {
    return f(a, b);
  }
}

struct Add {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
  ORTM_HD bool operator()(bool a, bool b) const { return a || b; }
};
struct Sub {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x - y; });
  }
};
struct Mul {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
  ORTM_HD bool operator()(bool a, bool b) const { return a && b; }
};
struct Neg {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return -x;
  }
  ORTM_HD int64_t operator()(int64_t x) const {
    return static_cast<int64_t>(-static_cast<uint64_t>(x));
  }
};
struct Abs {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return std::fabs(x);
  }
  ORTM_HD int64_t operator()(int64_t x) const { return x < 0 ? Neg()(x) : x; }
};
struct Sign {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return T(x > T(0)) - T(x < T(0));
  }
};
// NaN wins, as in torch.maximum.
struct Max {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    const T larger = a > b ? a : b;  // b if a is NaN or b is
    return a != a ? a : larger;
  }
  ORTM_HD bool operator()(bool a, bool b) const { return a || b; }
};
struct Min {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    const T smaller = a < b ? a : b;
    return a != a ? a : smaller;
  }
  ORTM_HD bool operator()(bool a, bool b) const { return a && b; }
};
// Bounds of the computation type; an absent one is the type's own limit, which bounds nothing.
struct Clip {
  static void configure(const auto& node, MicroParams& p) {
    p.number[0] = node.attrs.number("min", -std::numeric_limits<double>::infinity());
    p.number[1] = node.attrs.number("max", std::numeric_limits<double>::infinity());
  }
  ORTM_HD explicit Clip(const MicroParams& p) : low(p.number[0]), high(p.number[1]) {}
  template <class T>
  ORTM_HD T operator()(T x) const {
    const T lower = bound<T>(low), upper = bound<T>(high);
    x = x < lower ? lower : x;
    return x > upper ? upper : x;
  }
  template <class T>
  static ORTM_HD T bound(double value) {
    if constexpr (std::is_same_v<T, int64_t>) {
      if (value >= 9223372036854775808.0) return std::numeric_limits<int64_t>::max();
      if (value < -9223372036854775808.0) return std::numeric_limits<int64_t>::min();
    }
    return static_cast<T>(value);
  }
  double low, high;
};

// An integer divided by 0 is an error on the CPU; on CUDA, where PyTorch's result is undefined, it
// is 0. Integers round towards zero.
struct Div {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    return a / b;
  }
  ORTM_HD int64_t operator()(int64_t a, int64_t b) const {
    ORTM_CHECK_ON_CPU(b != 0, "[Div] an integer divisor must not be 0");
    if (b == 0) return 0;
    return b == -1 ? Neg()(a) : a / b;
  }
};

ORTM_HD int64_t floor_div(int64_t a, int64_t b) {
  ORTM_CHECK_ON_CPU(b != 0, "[FloorDiv] an integer divisor must not be 0");
  if (b == 0) return 0;
  if (b == -1) return Neg()(a);
  const int64_t quotient = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? quotient - 1 : quotient;
}

// Python's floor division: exact for quotients that division would round up to the next integer.
template <class T>
ORTM_HD T floor_div(T a, T b) {
  if (b == 0) return a / b;
  const T mod = std::fmod(a, b);
  T quotient = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) quotient -= T(1);
  if (quotient == 0) return std::copysign(T(0), a / b);
  const T floored = std::floor(quotient);
  return quotient - floored > T(0.5) ? floored + T(1) : floored;
}

struct FloorDiv {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    return floor_div(a, b);
  }
};

// The result has the divisor's sign, as in Python.
struct Mod {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    const T mod = std::fmod(a, b);
    return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
  }
  ORTM_HD int64_t operator()(int64_t a, int64_t b) const {
    ORTM_CHECK_ON_CPU(b != 0, "[Mod] an integer divisor must not be 0");
    if (b == 0) return 0;
    if (b == -1) return 0;
    const int64_t mod = a % b;
    return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
  }
};
// The result has the dividend's sign, as in C.
struct FMod {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    return std::fmod(a, b);
  }
  ORTM_HD int64_t operator()(int64_t a, int64_t b) const {
    ORTM_CHECK_ON_CPU(b != 0, "[Mod] an integer divisor must not be 0");
    if (b == 0) return 0;
    return b == -1 ? 0 : a % b;
  }
};

// By as many bits as the type has or more, nothing is left but the sign.
struct ShiftLeft {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    const auto bits = static_cast<uint64_t>(b);
    return bits < 64 ? static_cast<T>(static_cast<uint64_t>(a) << bits) : T(0);
  }
};
struct ShiftRight {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    const auto bits = static_cast<uint64_t>(b);
    return bits < 64 ? a >> bits : static_cast<T>(a < 0 ? -1 : 0);
  }
};

struct BitAnd {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    return a & b;
  }
};
struct BitOr {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    return a | b;
  }
};
struct BitXor {
  template <class T>
  ORTM_HD T operator()(T a, T b) const {
    return a ^ b;
  }
};
struct BitNot {
  ORTM_HD int64_t operator()(int64_t a) const { return ~a; }
  ORTM_HD bool operator()(bool a) const { return !a; }
};

struct Where {
  template <class T>
  ORTM_HD T operator()(bool condition, T a, T b) const {
    return condition ? a : b;
  }
};

}  // namespace formulas
}  // namespace ORTM_ISA
}  // namespace ortmodule

/// ROW(name, loop, functor, type of the operands, type of the result).
#define ORTM_ARITHMETIC_OPS(ROW)                              \
  ORTM_FLOAT_ROWS(ROW, "Add", binary, Add)                    \
  ORTM_INTEGER_ROW(ROW, "Add", binary, Add)                   \
  ORTM_BOOL_ROW(ROW, "Add", binary, Add)                      \
  ORTM_FLOAT_ROWS(ROW, "Sub", binary, Sub)                    \
  ORTM_INTEGER_ROW(ROW, "Sub", binary, Sub)                   \
  ORTM_FLOAT_ROWS(ROW, "Mul", binary, Mul)                    \
  ORTM_INTEGER_ROW(ROW, "Mul", binary, Mul)                   \
  ORTM_BOOL_ROW(ROW, "Mul", binary, Mul)                      \
  ORTM_FLOAT_ROWS(ROW, "Div", binary, Div)                    \
  ORTM_INTEGER_ROW(ROW, "Div", binary_library, Div)           \
  ORTM_FLOAT_ROWS(ROW, "Neg", unary, Neg)                     \
  ORTM_INTEGER_ROW(ROW, "Neg", unary, Neg)                    \
  ORTM_FLOAT_ROWS(ROW, "Abs", unary, Abs)                     \
  ORTM_INTEGER_ROW(ROW, "Abs", unary, Abs)                    \
  ORTM_FLOAT_ROWS(ROW, "Sign", unary, Sign)                   \
  ORTM_INTEGER_ROW(ROW, "Sign", unary, Sign)                  \
  ORTM_FLOAT_ROWS(ROW, "Max", binary, Max)                    \
  ORTM_INTEGER_ROW(ROW, "Max", binary, Max)                   \
  ORTM_BOOL_ROW(ROW, "Max", binary, Max)                      \
  ORTM_FLOAT_ROWS(ROW, "Min", binary, Min)                    \
  ORTM_INTEGER_ROW(ROW, "Min", binary, Min)                   \
  ORTM_BOOL_ROW(ROW, "Min", binary, Min)                      \
  ORTM_FLOAT_ROWS(ROW, "Clip", unary, Clip)                   \
  ORTM_INTEGER_ROW(ROW, "Clip", unary, Clip)                  \
  ORTM_FLOAT_ROWS(ROW, "HardTanh", unary, Clip)               \
  ORTM_INTEGER_ROW(ROW, "HardTanh", unary, Clip)              \
  ORTM_FLOAT_ROWS(ROW, "FloorDiv", binary_library, FloorDiv)  \
  ORTM_INTEGER_ROW(ROW, "FloorDiv", binary_library, FloorDiv) \
  ORTM_FLOAT_ROWS(ROW, "Mod", binary_library, Mod)            \
  ORTM_INTEGER_ROW(ROW, "Mod", binary_library, Mod)           \
  ORTM_FLOAT_ROWS(ROW, "Mod.fmod", binary_library, FMod)      \
  ORTM_INTEGER_ROW(ROW, "Mod.fmod", binary_library, FMod)     \
  ORTM_BOOL_ROW(ROW, "And", binary, BitAnd)                   \
  ORTM_BOOL_ROW(ROW, "Or", binary, BitOr)                     \
  ORTM_BOOL_ROW(ROW, "Xor", binary, BitXor)                   \
  ORTM_INTEGER_ROW(ROW, "BitShiftLeft", binary, ShiftLeft)    \
  ORTM_INTEGER_ROW(ROW, "BitShiftRight", binary, ShiftRight)  \
  ORTM_BOOL_ROW(ROW, "BitwiseAnd", binary, BitAnd)            \
  ORTM_INTEGER_ROW(ROW, "BitwiseAnd", binary, BitAnd)         \
  ORTM_BOOL_ROW(ROW, "BitwiseOr", binary, BitOr)              \
  ORTM_INTEGER_ROW(ROW, "BitwiseOr", binary, BitOr)           \
  ORTM_BOOL_ROW(ROW, "BitwiseXor", binary, BitXor)            \
  ORTM_INTEGER_ROW(ROW, "BitwiseXor", binary, BitXor)         \
  ORTM_BOOL_ROW(ROW, "BitwiseNot", unary, BitNot)             \
  ORTM_INTEGER_ROW(ROW, "BitwiseNot", unary, BitNot)          \
  ROW("Where", where, Where, float, float)                    \
  ROW("Where", where, Where, double, double)                  \
  ROW("Where", where, Where, int64_t, int64_t)                \
  ROW("Where", where, Where, bool, bool)
