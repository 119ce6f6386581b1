// Gradients of activation functions, (dy, x) or (dy, y) to dx: formulas and rows for the CPU and
// CUDA pointwise groups.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/pointwise_row.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace formulas {

struct GeluGrad {
  template <class T>
  ORTM_HD T operator()(T dy, T x) const {
    return gelu_grad(dy, x);
  }
};
struct GeluTanhGrad {
  template <class T>
  ORTM_HD T operator()(T dy, T x) const {
    return gelu_tanh_grad(dy, x);
  }
};
struct ReluGrad {  // of y
  template <class T>
  ORTM_HD T operator()(T dy, T y) const {
    return y <= T(0) ? T(0) : dy;
  }
};
struct TanhGrad {  // of y
  template <class T>
  ORTM_HD T operator()(T dy, T y) const {
    return dy * (T(1) - y * y);
  }
};
struct SigmoidGrad {  // of y
  template <class T>
  ORTM_HD T operator()(T dy, T y) const {
    return dy * (T(1) - y) * y;
  }
};
struct SiluGrad {
  template <class T>
  ORTM_HD T operator()(T dy, T x) const {
    const T s = sigmoid(x);
    return dy * s * (T(1) + x * (T(1) - s));
  }
};
struct SoftplusGrad {
  static void configure(const auto& node, MicroParams& p) {
    p.number[0] = node.attrs.number("beta", 1.0);
    p.number[1] = node.attrs.number("threshold", 20.0);
  }
  ORTM_HD explicit SoftplusGrad(const MicroParams& p) : beta(p.number[0]), threshold(p.number[1]) {}
  template <class T>
  ORTM_HD T operator()(T dy, T x) const {
    const T scaled = x * static_cast<T>(beta);
    const T slope = dy * sigmoid(scaled);
    return select(scaled > static_cast<T>(threshold), dy, slope);
  }
  double beta, threshold;
};
struct LeakyReluGrad {
  static void configure(const auto& node, MicroParams& p) {
    p.number[0] = node.attrs.number("alpha", 0.01);
  }
  ORTM_HD explicit LeakyReluGrad(const MicroParams& p) : alpha(p.number[0]) {}
  template <class T>
  ORTM_HD T operator()(T dy, T x) const {
    const T scaled = dy * static_cast<T>(alpha);
    return x > T(0) ? dy : scaled;
  }
  double alpha;
};
struct EluGrad {
  static void configure(const auto& node, MicroParams& p) {
    p.number[0] = node.attrs.number("alpha", 1.0);
  }
  ORTM_HD explicit EluGrad(const MicroParams& p) : alpha(p.number[0]) {}
  template <class T>
  ORTM_HD T operator()(T dy, T x) const {
    const T slope = dy * static_cast<T>(alpha) * fast_exp(x);
    return select(x > T(0), dy, slope);
  }
  double alpha;
};
// The bounds belong to the inside, as in torch.clamp.
struct ClipGrad {
  static void configure(const auto& node, MicroParams& p) {
    p.number[0] = node.attrs.number("min", -std::numeric_limits<double>::infinity());
    p.number[1] = node.attrs.number("max", std::numeric_limits<double>::infinity());
  }
  ORTM_HD explicit ClipGrad(const MicroParams& p) : low(p.number[0]), high(p.number[1]) {}
  template <class T>
  ORTM_HD T operator()(T dy, T x) const {
    const T above = x >= static_cast<T>(low) ? dy : T(0);
    return x <= static_cast<T>(high) ? above : T(0);
  }
  double low, high;
};
struct LogSigmoidGrad {
  template <class T>
  ORTM_HD T operator()(T dy, T x) const {
    return dy * sigmoid(-x);
  }
};
struct MishGrad {
  template <class T>
  ORTM_HD T operator()(T dy, T x) const {
    // As in Mish; sigmoid(x) (1 - tanh(softplus(x))^2) = 4 e (e + 1) / (n + 2)^2.
    const T e = fast_exp(select(x > T(20), T(20), x));
    const T n = e * (e + T(2)), d = n + T(2);
    const T slope = select(x > T(20), T(0), T(4) * e * (e + T(1)) / (d * d));
    return dy * (n / d + x * slope);
  }
};
struct HardSigmoidGrad {
  template <class T>
  ORTM_HD T operator()(T dy, T x) const {
    const T inside = dy / T(6);
    return x > T(-3) && x < T(3) ? inside : T(0);
  }
};
struct HardSwishGrad {
  template <class T>
  ORTM_HD T operator()(T dy, T x) const {
    const T inside = dy * (x / T(3) + T(0.5));
    const T right = x < T(3) ? inside : dy;
    return x <= T(-3) ? T(0) : right;
  }
};

}  // namespace formulas
}  // namespace ORTM_ISA
}  // namespace ortmodule

/// ROW(name, loop, functor, type of the operands, type of the result).
#define ORTM_GRADIENT_OPS(ROW)                                           \
  ORTM_FLOAT_ROWS(ROW, "GeluGrad", binary_formula, GeluGrad)             \
  ORTM_FLOAT_ROWS(ROW, "GeluGrad.tanh", binary_formula, GeluTanhGrad)    \
  ORTM_FLOAT_ROWS(ROW, "ReluGrad", binary, ReluGrad)                     \
  ORTM_FLOAT_ROWS(ROW, "TanhGrad", binary, TanhGrad)                     \
  ORTM_FLOAT_ROWS(ROW, "SigmoidGrad", binary, SigmoidGrad)               \
  ORTM_FLOAT_ROWS(ROW, "SiluGrad", binary_formula, SiluGrad)             \
  ORTM_FLOAT_ROWS(ROW, "LogSigmoidGrad", binary_formula, LogSigmoidGrad) \
  ORTM_FLOAT_ROWS(ROW, "MishGrad", binary_long_formula, MishGrad)        \
  ORTM_FLOAT_ROWS(ROW, "HardSigmoidGrad", binary, HardSigmoidGrad)       \
  ORTM_FLOAT_ROWS(ROW, "HardSwishGrad", binary, HardSwishGrad)           \
  ORTM_FLOAT_ROWS(ROW, "ClipGrad", binary, ClipGrad)                     \
  ORTM_FLOAT_ROWS(ROW, "LeakyReluGrad", binary, LeakyReluGrad)           \
  ORTM_FLOAT_ROWS(ROW, "EluGrad", binary_formula, EluGrad)               \
  ORTM_FLOAT_ROWS(ROW, "SoftplusGrad", binary_formula, SoftplusGrad)
