// Comparisons and tests, any computation type to bool: formulas and rows for the CPU and CUDA
// pointwise groups.
#pragma once

#include <cmath>
#include <functional>
#include <limits>

#include "kernels/pointwise_row.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace formulas {

// The standard library's functors would take their operands as one type by reference.
template <template <class> class Compare>
struct Comparison {
  template <class T>
  ORTM_HD bool operator()(T a, T b) const {
    return Compare<T>()(a, b);
  }
};
using Equal = Comparison<std::equal_to>;
using Less = Comparison<std::less>;
using LessOrEqual = Comparison<std::less_equal>;
using Greater = Comparison<std::greater>;
using GreaterOrEqual = Comparison<std::greater_equal>;
using NotEqual = Comparison<std::not_equal_to>;

struct IsNaN {
  template <class T>
  ORTM_HD bool operator()(T x) const {
    return x != x;
  }
};
struct IsInf {
  template <class T>
  ORTM_HD bool operator()(T x) const {
    return std::fabs(x) == std::numeric_limits<T>::infinity();
  }
  ORTM_HD bool operator()(int64_t) const { return false; }
};
struct Not {
  template <class T>
  ORTM_HD bool operator()(T x) const {
    return x == T(0);
  }
};

}  // namespace formulas
}  // namespace ORTM_ISA
}  // namespace ortmodule

/// ROW(name, loop, functor, type of the operands, type of the result).
#define ORTM_COMPARISON_OPS(ROW)                                      \
  ORTM_COMPARISON_ROWS(ROW, "Equal", binary, Equal)                   \
  ORTM_COMPARISON_ROWS(ROW, "NotEqual", binary, NotEqual)             \
  ORTM_COMPARISON_ROWS(ROW, "Less", binary, Less)                     \
  ORTM_COMPARISON_ROWS(ROW, "LessOrEqual", binary, LessOrEqual)       \
  ORTM_COMPARISON_ROWS(ROW, "Greater", binary, Greater)               \
  ORTM_COMPARISON_ROWS(ROW, "GreaterOrEqual", binary, GreaterOrEqual) \
  ORTM_COMPARISON_ROWS(ROW, "Not", unary, Not)                        \
  ROW("IsNaN", unary, IsNaN, float, bool)                             \
  ROW("IsNaN", unary, IsNaN, double, bool)                            \
  ROW("IsNaN", unary, IsNaN, int64_t, bool)                           \
  ROW("IsInf", unary, IsInf, float, bool)                             \
  ROW("IsInf", unary, IsInf, double, bool)                            \
  ROW("IsInf", unary, IsInf, int64_t, bool)
