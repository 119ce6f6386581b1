// Comparisons and tests of the pointwise group: any computation type to bool.
#include <cmath>
#include <functional>

#include "kernels/cpu/pointwise_op.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

// The standard library's functors would take their operands as one type by reference.
template <template <class> class Compare>
struct Comparison {
  template <class T>
  bool operator()(T a, T b) const {
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
  bool operator()(T x) const {
    return x != x;
  }
};
struct IsInf {
  template <class T>
  bool operator()(T x) const {
    return std::fabs(x) == std::numeric_limits<T>::infinity();
  }
  bool operator()(int64_t) const { return false; }
};
struct Not {
  template <class T>
  bool operator()(T x) const {
    return x == T(0);
  }
};

#define ORTM_COMPARISON_ROWS(name, loop, F)                           \
  {name, Compute::F32, Compute::Bool, &loop<F, float, bool>},         \
      {name, Compute::F64, Compute::Bool, &loop<F, double, bool>},    \
      {name, Compute::I64, Compute::Bool, &loop<F, int64_t, bool>}, { \
    name, Compute::Bool, Compute::Bool, &loop<F, bool, bool>          \
  }

constexpr MicroOp kComparisons[] = {
    ORTM_COMPARISON_ROWS("Equal", binary, Equal),
    ORTM_COMPARISON_ROWS("NotEqual", binary, NotEqual),
    ORTM_COMPARISON_ROWS("Less", binary, Less),
    ORTM_COMPARISON_ROWS("LessOrEqual", binary, LessOrEqual),
    ORTM_COMPARISON_ROWS("Greater", binary, Greater),
    ORTM_COMPARISON_ROWS("GreaterOrEqual", binary, GreaterOrEqual),
    ORTM_COMPARISON_ROWS("Not", unary, Not),
    {"IsNaN", Compute::F32, Compute::Bool, &unary<IsNaN, float, bool>},
    {"IsNaN", Compute::F64, Compute::Bool, &unary<IsNaN, double, bool>},
    {"IsNaN", Compute::I64, Compute::Bool, &unary<IsNaN, int64_t, bool>},
    {"IsInf", Compute::F32, Compute::Bool, &unary<IsInf, float, bool>},
    {"IsInf", Compute::F64, Compute::Bool, &unary<IsInf, double, bool>},
    {"IsInf", Compute::I64, Compute::Bool, &unary<IsInf, int64_t, bool>},
};

#undef ORTM_COMPARISON_ROWS

}  // namespace

std::span<const MicroOp> comparison_ops() { return kComparisons; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
