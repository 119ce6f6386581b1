// Activation functions: formulas and rows for the CPU and CUDA pointwise groups.
#pragma once

#include <cmath>

#include "kernels/pointwise_row.h"
#include "kernels/scalar_elementary.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace formulas {

struct Relu {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return x <= T(0) ? T(0) : x;  // NaN passes
  }
};
struct Sigmoid {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return sigmoid(x);
  }
};
struct Silu {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return x / (T(1) + fast_exp(-x));
  }
};
struct Tanh {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return fast_tanh(x);
  }
};
struct Gelu {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return gelu(x);
  }
};
struct GeluTanh {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return gelu_tanh(x);
  }
};

struct LeakyRelu {
  static void configure(const auto& node, MicroParams& p) {
    p.number[0] = node.attrs.number("alpha", 0.01);
  }
  ORTM_HD explicit LeakyRelu(const MicroParams& p) : alpha(p.number[0]) {}
  template <class T>
  ORTM_HD T operator()(T x) const {
    const T scaled = x * static_cast<T>(alpha);
    return x > T(0) ? x : scaled;
  }
  double alpha;
};
struct Elu {
  static void configure(const auto& node, MicroParams& p) {
    p.number[0] = node.attrs.number("alpha", 1.0);
  }
  ORTM_HD explicit Elu(const MicroParams& p) : alpha(p.number[0]) {}
  template <class T>
  ORTM_HD T operator()(T x) const {
    return select(x > T(0), x, static_cast<T>(alpha) * fast_expm1(x));
  }
  double alpha;
};
// log(1 + exp(beta x)) / beta, linear where beta x exceeds the threshold.
struct Softplus {
  static void configure(const auto& node, MicroParams& p) {
    p.number[0] = node.attrs.number("beta", 1.0);
    p.number[1] = node.attrs.number("threshold", 20.0);
  }
  ORTM_HD explicit Softplus(const MicroParams& p) : beta(p.number[0]), threshold(p.number[1]) {}
  template <class T>
  ORTM_HD T operator()(T x) const {
    const T scaled = x * static_cast<T>(beta);
    const T curved = fast_log1p(whole_exp(scaled)) / static_cast<T>(beta);
    return select(scaled > static_cast<T>(threshold), x, curved);
  }
  double beta, threshold;
};
struct LogSigmoid {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return select(x < T(0), x, T(0)) - fast_log1p(fast_exp(-magnitude_of(x)));
  }
};
// tanh(softplus(x)) = n / (n + 2) with n = e^x (e^x + 2).
struct Mish {
  template <class T>
  ORTM_HD T operator()(T x) const {
    const T e = fast_exp(select(x > T(20), T(20), x));  // where the quotient is 1
    const T n = e * (e + T(2));
    return x * (n / (n + T(2)));
  }
};

// relu6(x + 3).
template <class T>
ORTM_HD T relu6_shifted(T x) {
  const T shifted = x + T(3);
  const T low = shifted < T(0) ? T(0) : shifted;
  return low > T(6) ? T(6) : low;
}
struct HardSigmoid {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return relu6_shifted(x) / T(6);
  }
};
struct HardSwish {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return x * relu6_shifted(x) / T(6);
  }
};

}  // namespace formulas
}  // namespace ORTM_ISA
}  // namespace ortmodule

/// ROW(name, loop, functor, type of the operands, type of the result).
#define ORTM_ACTIVATION_OPS(ROW)                                     \
  ORTM_FLOAT_ROWS(ROW, "Relu", unary, Relu)                          \
  ORTM_INTEGER_ROW(ROW, "Relu", unary, Relu)                         \
  ORTM_FLOAT_ROWS(ROW, "Sigmoid", unary_formula, Sigmoid)            \
  ORTM_FLOAT_ROWS(ROW, "Silu", unary_formula, Silu)                  \
  ORTM_FLOAT_ROWS(ROW, "Tanh", unary_formula, Tanh)                  \
  ORTM_FLOAT_ROWS(ROW, "Gelu", unary_formula, Gelu)                  \
  ORTM_FLOAT_ROWS(ROW, "Gelu.tanh", unary_formula, GeluTanh)         \
  ORTM_FLOAT_ROWS(ROW, "Mish", unary_long_formula, Mish)             \
  ORTM_FLOAT_ROWS(ROW, "LogSigmoid", unary_long_formula, LogSigmoid) \
  ORTM_FLOAT_ROWS(ROW, "HardSigmoid", unary, HardSigmoid)            \
  ORTM_FLOAT_ROWS(ROW, "HardSwish", unary, HardSwish)                \
  ORTM_FLOAT_ROWS(ROW, "LeakyRelu", unary, LeakyRelu)                \
  ORTM_FLOAT_ROWS(ROW, "Elu", unary_long_formula, Elu)               \
  ORTM_FLOAT_ROWS(ROW, "Softplus", unary_long_formula, Softplus)
