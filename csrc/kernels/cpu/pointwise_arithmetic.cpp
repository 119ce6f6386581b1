// Arithmetic, selection and bit operations of the pointwise group.
#include <cmath>

#include "kernels/cpu/pointwise_op.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

// Integers wrap around, as in PyTorch; C++ leaves signed overflow open.
template <class T, class F>
inline T wrapping(T a, T b, F f) {
  if constexpr (std::is_same_v<T, int64_t>) {
    return static_cast<T>(f(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
  } else {
    return f(a, b);
  }
}

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
  bool operator()(bool a, bool b) const { return a || b; }
};
struct Sub {
  template <class T>
  T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x - y; });
  }
};
struct Mul {
  template <class T>
  T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
  bool operator()(bool a, bool b) const { return a && b; }
};
struct Div {
  template <class T>
  T operator()(T a, T b) const {
    return a / b;
  }
};
struct Neg {
  template <class T>
  T operator()(T x) const {
    return -x;
  }
  int64_t operator()(int64_t x) const { return static_cast<int64_t>(-static_cast<uint64_t>(x)); }
};
struct Abs {
  template <class T>
  T operator()(T x) const {
    return std::fabs(x);
  }
  int64_t operator()(int64_t x) const { return x < 0 ? Neg()(x) : x; }
};
struct Sign {
  template <class T>
  T operator()(T x) const {
    return T(x > T(0)) - T(x < T(0));
  }
};
// NaN wins, as in torch.maximum.
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    const T larger = a > b ? a : b;  // b if a is NaN or b is
    return a != a ? a : larger;
  }
  bool operator()(bool a, bool b) const { return a || b; }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    const T smaller = a < b ? a : b;
    return a != a ? a : smaller;
  }
  bool operator()(bool a, bool b) const { return a && b; }
};
// Bounds of the computation type; an absent one is the type's own limit, which bounds nothing.
struct Clip {
  explicit Clip(const MicroParams& p) : low(p.number[0]), high(p.number[1]) {}
  template <class T>
  T operator()(T x) const {
    const T lower = bound<T>(low), upper = bound<T>(high);
    x = x < lower ? lower : x;
    return x > upper ? upper : x;
  }
  template <class T>
  static T bound(double value) {
    if constexpr (std::is_same_v<T, int64_t>) {
      if (value >= 9223372036854775808.0) return std::numeric_limits<int64_t>::max();
      if (value < -9223372036854775808.0) return std::numeric_limits<int64_t>::min();
    }
    return static_cast<T>(value);
  }
  double low, high;
};

void configure_clip(const NodeFacts& node, MicroParams& p) {
  const double infinity = std::numeric_limits<double>::infinity();
  p.number[0] = node.attrs.number("min", -infinity);
  p.number[1] = node.attrs.number("max", infinity);
}

inline int64_t floor_div(int64_t a, int64_t b) {
  ORTM_CHECK(b != 0, "[FloorDiv] an integer divisor must not be 0");
  if (b == -1) return Neg()(a);
  const int64_t quotient = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? quotient - 1 : quotient;
}

// Python's floor division: exact for quotients that division would round up to the next integer.
template <class T>
inline T floor_div(T a, T b) {
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
  T operator()(T a, T b) const {
    return floor_div(a, b);
  }
};

// The result has the divisor's sign, as in Python.
struct Mod {
  template <class T>
  T operator()(T a, T b) const {
    const T mod = std::fmod(a, b);
    return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
  }
  int64_t operator()(int64_t a, int64_t b) const {
    ORTM_CHECK(b != 0, "[Mod] an integer divisor must not be 0");
    if (b == -1) return 0;
    const int64_t mod = a % b;
    return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
  }
};
// The result has the dividend's sign, as in C.
struct FMod {
  template <class T>
  T operator()(T a, T b) const {
    return std::fmod(a, b);
  }
  int64_t operator()(int64_t a, int64_t b) const {
    ORTM_CHECK(b != 0, "[Mod] an integer divisor must not be 0");
    return b == -1 ? 0 : a % b;
  }
};

struct BitAnd {
  template <class T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct BitOr {
  template <class T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct BitXor {
  template <class T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};
struct BitNot {
  int64_t operator()(int64_t a) const { return ~a; }
  bool operator()(bool a) const { return !a; }
};

template <class T>
void where(const MicroArgs& m) {
  const bool* condition = static_cast<const bool*>(m.in[0]);
  const T* a = static_cast<const T*>(m.in[1]);
  const T* b = static_cast<const T*>(m.in[2]);
  T* out = static_cast<T*>(m.out);
  const int64_t count = m.count;
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const T x = a[i], y = b[i];  // both read, so that the choice is a blend and not a branch
    out[i] = condition[i] ? x : y;
  }
}

constexpr MicroOp kArithmetic[] = {
    ORTM_FLOAT_ROWS("Add", binary, Add),
    ORTM_INTEGER_ROW("Add", binary, Add),
    ORTM_BOOL_ROW("Add", binary, Add),
    ORTM_FLOAT_ROWS("Sub", binary, Sub),
    ORTM_INTEGER_ROW("Sub", binary, Sub),
    ORTM_FLOAT_ROWS("Mul", binary, Mul),
    ORTM_INTEGER_ROW("Mul", binary, Mul),
    ORTM_BOOL_ROW("Mul", binary, Mul),
    ORTM_FLOAT_ROWS("Div", binary, Div),
    ORTM_FLOAT_ROWS("Neg", unary, Neg),
    ORTM_INTEGER_ROW("Neg", unary, Neg),
    ORTM_FLOAT_ROWS("Abs", unary, Abs),
    ORTM_INTEGER_ROW("Abs", unary, Abs),
    ORTM_FLOAT_ROWS("Sign", unary, Sign),
    ORTM_INTEGER_ROW("Sign", unary, Sign),
    ORTM_FLOAT_ROWS("Max", binary, Max),
    ORTM_INTEGER_ROW("Max", binary, Max),
    ORTM_BOOL_ROW("Max", binary, Max),
    ORTM_FLOAT_ROWS("Min", binary, Min),
    ORTM_INTEGER_ROW("Min", binary, Min),
    ORTM_BOOL_ROW("Min", binary, Min),
    ORTM_FLOAT_ROWS_WITH("Clip", unary, Clip, &configure_clip),
    {"Clip", Compute::I64, Compute::I64, &unary<Clip, int64_t>, &configure_clip},
    ORTM_FLOAT_ROWS_WITH("HardTanh", unary, Clip, &configure_clip),
    {"HardTanh", Compute::I64, Compute::I64, &unary<Clip, int64_t>, &configure_clip},
    ORTM_FLOAT_ROWS("FloorDiv", binary, FloorDiv),
    ORTM_INTEGER_ROW("FloorDiv", binary, FloorDiv),
    ORTM_FLOAT_ROWS("Mod", binary, Mod),
    ORTM_INTEGER_ROW("Mod", binary, Mod),
    ORTM_FLOAT_ROWS("Mod.fmod", binary, FMod),
    ORTM_INTEGER_ROW("Mod.fmod", binary, FMod),
    ORTM_BOOL_ROW("And", binary, BitAnd),
    ORTM_BOOL_ROW("Or", binary, BitOr),
    ORTM_BOOL_ROW("Xor", binary, BitXor),
    ORTM_BOOL_ROW("BitwiseAnd", binary, BitAnd),
    ORTM_INTEGER_ROW("BitwiseAnd", binary, BitAnd),
    ORTM_BOOL_ROW("BitwiseOr", binary, BitOr),
    ORTM_INTEGER_ROW("BitwiseOr", binary, BitOr),
    ORTM_BOOL_ROW("BitwiseXor", binary, BitXor),
    ORTM_INTEGER_ROW("BitwiseXor", binary, BitXor),
    ORTM_BOOL_ROW("BitwiseNot", unary, BitNot),
    ORTM_INTEGER_ROW("BitwiseNot", unary, BitNot),
    {"Where", Compute::F32, Compute::F32, &where<float>},
    {"Where", Compute::F64, Compute::F64, &where<double>},
    {"Where", Compute::I64, Compute::I64, &where<int64_t>},
    {"Where", Compute::Bool, Compute::Bool, &where<bool>},
};

}  // namespace

std::span<const MicroOp> arithmetic_ops() { return kArithmetic; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
