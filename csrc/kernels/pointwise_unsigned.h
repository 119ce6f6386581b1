// Pointwise ops on uint64, which int64 cannot hold: rows for the CPU pointwise groups. Narrower
// unsigned integers are computed as int64.
#pragma once

#include "kernels/pointwise_arithmetic.h"
#include "kernels/pointwise_comparison.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace formulas {

/// Divisions, which need a check. Quotients of unsigned numbers are floored and truncated at once.
struct UnsignedDiv {
  ORTM_HD uint64_t operator()(uint64_t a, uint64_t b) const {
    ORTM_CHECK_ON_CPU(b != 0, "[Div] an integer divisor must not be 0");
    return b == 0 ? 0 : a / b;
  }
};
struct UnsignedMod {
  ORTM_HD uint64_t operator()(uint64_t a, uint64_t b) const {
    ORTM_CHECK_ON_CPU(b != 0, "[Mod] an integer divisor must not be 0");
    return b == 0 ? 0 : a % b;
  }
};
struct UnsignedAbs {
  ORTM_HD uint64_t operator()(uint64_t x) const { return x; }
};
struct UnsignedSign {
  ORTM_HD uint64_t operator()(uint64_t x) const { return x != 0 ? 1 : 0; }
};
struct UnsignedNot {
  ORTM_HD uint64_t operator()(uint64_t x) const { return ~x; }
};

}  // namespace formulas
}  // namespace ORTM_ISA
}  // namespace ortmodule

#define ORTM_UNSIGNED_ROW(ROW, name, loop, F) ROW(name, loop, F, uint64_t, uint64_t)
#define ORTM_UNSIGNED_TEST(ROW, name, loop, F) ROW(name, loop, F, uint64_t, bool)

/// ROW(name, loop, functor, type of the operands, type of the result).
#define ORTM_UNSIGNED_OPS(ROW)                                      \
  ORTM_UNSIGNED_ROW(ROW, "Add", binary, Add)                        \
  ORTM_UNSIGNED_ROW(ROW, "Sub", binary, Sub)                        \
  ORTM_UNSIGNED_ROW(ROW, "Mul", binary, Mul)                        \
  ORTM_UNSIGNED_ROW(ROW, "Div", binary_library, UnsignedDiv)        \
  ORTM_UNSIGNED_ROW(ROW, "FloorDiv", binary_library, UnsignedDiv)   \
  ORTM_UNSIGNED_ROW(ROW, "Mod", binary_library, UnsignedMod)        \
  ORTM_UNSIGNED_ROW(ROW, "Mod.fmod", binary_library, UnsignedMod)   \
  ORTM_UNSIGNED_ROW(ROW, "Max", binary, Max)                        \
  ORTM_UNSIGNED_ROW(ROW, "Min", binary, Min)                        \
  ORTM_UNSIGNED_ROW(ROW, "Abs", unary, UnsignedAbs)                 \
  ORTM_UNSIGNED_ROW(ROW, "Sign", unary, UnsignedSign)               \
  ORTM_UNSIGNED_ROW(ROW, "BitShiftLeft", binary, ShiftLeft)         \
  ORTM_UNSIGNED_ROW(ROW, "BitShiftRight", binary, ShiftRight)       \
  ORTM_UNSIGNED_ROW(ROW, "BitwiseAnd", binary, BitAnd)              \
  ORTM_UNSIGNED_ROW(ROW, "BitwiseOr", binary, BitOr)                \
  ORTM_UNSIGNED_ROW(ROW, "BitwiseXor", binary, BitXor)              \
  ORTM_UNSIGNED_ROW(ROW, "BitwiseNot", unary, UnsignedNot)          \
  ORTM_UNSIGNED_ROW(ROW, "Where", where, Where)                     \
  ORTM_UNSIGNED_TEST(ROW, "Equal", binary, Equal)                   \
  ORTM_UNSIGNED_TEST(ROW, "NotEqual", binary, NotEqual)             \
  ORTM_UNSIGNED_TEST(ROW, "Less", binary, Less)                     \
  ORTM_UNSIGNED_TEST(ROW, "LessOrEqual", binary, LessOrEqual)       \
  ORTM_UNSIGNED_TEST(ROW, "Greater", binary, Greater)               \
  ORTM_UNSIGNED_TEST(ROW, "GreaterOrEqual", binary, GreaterOrEqual) \
  ORTM_UNSIGNED_TEST(ROW, "Not", unary, Not)
