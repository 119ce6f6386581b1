// Activation functions of the pointwise group.
#include "kernels/cpu/pointwise_op.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

struct Relu {
  template <class T>
  T operator()(T x) const {
    return x <= T(0) ? T(0) : x;  // NaN passes
  }
};
struct Sigmoid {
  template <class T>
  T operator()(T x) const {
    return sigmoid(x);
  }
};
struct Silu {
  template <class T>
  T operator()(T x) const {
    return x / (T(1) + fast_exp(-x));
  }
};
struct Tanh {
  template <class T>
  T operator()(T x) const {
    return fast_tanh(x);
  }
};
struct Gelu {
  template <class T>
  T operator()(T x) const {
    return gelu(x);
  }
};
struct GeluTanh {
  template <class T>
  T operator()(T x) const {
    return gelu_tanh(x);
  }
};

struct LeakyRelu {
  explicit LeakyRelu(const MicroParams& p) : alpha(p.number[0]) {}
  template <class T>
  T operator()(T x) const {
    const T scaled = x * static_cast<T>(alpha);
    return x > T(0) ? x : scaled;
  }
  double alpha;
};
struct Elu {
  explicit Elu(const MicroParams& p) : alpha(p.number[0]) {}
  template <class T>
  T operator()(T x) const {
    return x > T(0) ? x : static_cast<T>(alpha) * std::expm1(x);
  }
  double alpha;
};
// log(1 + exp(beta x)) / beta, linear where beta x exceeds the threshold.
struct Softplus {
  explicit Softplus(const MicroParams& p) : beta(p.number[0]), threshold(p.number[1]) {}
  template <class T>
  T operator()(T x) const {
    const T scaled = x * static_cast<T>(beta);
    if (scaled > static_cast<T>(threshold)) return x;
    return std::log1p(fast_exp(scaled)) / static_cast<T>(beta);
  }
  double beta, threshold;
};
struct LogSigmoid {
  template <class T>
  T operator()(T x) const {
    const T least = x < T(0) ? x : T(0);
    return least - std::log1p(fast_exp(-std::fabs(x)));
  }
};
struct Mish {
  template <class T>
  T operator()(T x) const {
    return x * fast_tanh(std::log1p(fast_exp(x)));
  }
};

// relu6(x + 3).
template <class T>
inline T relu6_shifted(T x) {
  const T shifted = x + T(3);
  const T low = shifted < T(0) ? T(0) : shifted;
  return low > T(6) ? T(6) : low;
}
struct HardSigmoid {
  template <class T>
  T operator()(T x) const {
    return relu6_shifted(x) / T(6);
  }
};
struct HardSwish {
  template <class T>
  T operator()(T x) const {
    return x * relu6_shifted(x) / T(6);
  }
};

void configure_leaky_relu(const NodeFacts& node, MicroParams& p) {
  p.number[0] = node.attrs.number("alpha", 0.01);
}
void configure_elu(const NodeFacts& node, MicroParams& p) {
  p.number[0] = node.attrs.number("alpha", 1.0);
}
void configure_softplus(const NodeFacts& node, MicroParams& p) {
  p.number[0] = node.attrs.number("beta", 1.0);
  p.number[1] = node.attrs.number("threshold", 20.0);
}

constexpr MicroOp kActivations[] = {
    ORTM_FLOAT_ROWS("Relu", unary, Relu),
    ORTM_INTEGER_ROW("Relu", unary, Relu),
    ORTM_FLOAT_ROWS("Sigmoid", unary_formula, Sigmoid),
    ORTM_FLOAT_ROWS("Silu", unary_formula, Silu),
    ORTM_FLOAT_ROWS("Tanh", unary_formula, Tanh),
    ORTM_FLOAT_ROWS("Gelu", unary_formula, Gelu),
    ORTM_FLOAT_ROWS("Gelu.tanh", unary_formula, GeluTanh),
    ORTM_FLOAT_ROWS("Mish", unary, Mish),
    ORTM_FLOAT_ROWS("LogSigmoid", unary, LogSigmoid),
    ORTM_FLOAT_ROWS("HardSigmoid", unary, HardSigmoid),
    ORTM_FLOAT_ROWS("HardSwish", unary, HardSwish),
    ORTM_FLOAT_ROWS_WITH("LeakyRelu", unary, LeakyRelu, &configure_leaky_relu),
    ORTM_FLOAT_ROWS_WITH("Elu", unary, Elu, &configure_elu),
    ORTM_FLOAT_ROWS_WITH("Softplus", unary, Softplus, &configure_softplus),
};

}  // namespace

std::span<const MicroOp> activation_ops() { return kActivations; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
