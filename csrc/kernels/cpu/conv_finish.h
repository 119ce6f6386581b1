// What follows the sums of a convolution: bias, a further summand, an activation, rounding.
#pragma once

#include <limits>
#include <string>

#include "kernels/cpu/elementary_vec.h"
#include "kernels/cpu/panel_product.h"
#include "kernels/cpu/row_math.h"
#include "kernels/pointwise_activation.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// An activation behind a convolution, with the number `a` of LeakyRelu and Elu; Clip is to [a, b].
struct ConvActivation {
  enum class Kind : uint8_t {
    Clip,
    LeakyRelu,
    Elu,
    HardSigmoid,
    HardSwish,
    Sigmoid,
    Silu,
    Tanh,
    Mish
  };
  Kind kind = Kind::Clip;
  double a = -std::numeric_limits<double>::infinity(), b = std::numeric_limits<double>::infinity();
};

/// Where sums go: y, or memory of the thread if more than a bias and a Clip follow.
template <class T>
class ConvFinish {
 public:
  using C = ComputeOf<T>;

  ConvFinish() = default;
  ConvFinish(const T* bias, const T* z, T* y, const ConvActivation& activation)
      : bias_(bias), z_(z), y_(y), activation_(activation) {
    clips_ = !z && activation.kind == ConvActivation::Kind::Clip;
    least_ = static_cast<C>(activation.a);
    most_ = static_cast<C>(activation.b);
    if (!clips_) return;
    low_ = least_;
    high_ = most_;
  }

  C term(int64_t output) const { return bias_ ? computed(bias_[output]) : C(0); }
  T* y() const { return y_; }
  /// Whether `clipped` is the result, which can be stored as it is.
  bool is_direct() const { return std::is_same_v<C, T> && clips_; }

  /// The bounds of `clipped`.
  C low() const { return low_; }
  C high() const { return high_; }

  /// Whether `put` writes results.
  bool can_put() const {
    return std::is_same_v<T, float> && activation_.kind == ConvActivation::Kind::Clip;
  }
  /// Writes a vector of results from sums with their terms, or the first `count` of it.
  void put(FloatVec x, int64_t at) const {
    if (z_) x = x + FloatVec::load(z_ + at);
    clip(x, least_, most_).store(y_ + at);
  }
  void put(FloatVec x, int64_t at, int64_t count) const {
    if (z_) x = x + FloatVec::load(z_ + at, count);
    clip(x, least_, most_).store(y_ + at, count);
  }

  /// The terms of `count` outputs from `output` on, at most a vector.
  FloatVec terms(int64_t output, int64_t count) const {
    if (!bias_) return FloatVec(0.0f);
    return count >= FloatVec::kCount ? FloatVec::load(bias_ + output)
                                     : FloatVec::load(bias_ + output, count);
  }
  /// Writes results of pixels, whose sums lie `stride` apart: outputs [output, output + count) of
  /// pixel p to y[at[p] + output] and what follows.
  void write_pixels(const C* sums, int64_t stride, int64_t pixels, int64_t output, int64_t count,
                    const int64_t* at) const {
    using Kind = ConvActivation::Kind;
    const FloatVec a(activation_.a), six(6.0f);
    const auto relu6_shifted = [](FloatVec x) {
      return at_most(larger(FloatVec(0.0f), x + FloatVec(3.0f)), 6.0f);
    };
    const auto write = [&](const auto& f) {
      map_pixels(f, sums, stride, pixels, output, count, at);
    };
    switch (activation_.kind) {
      case Kind::Clip:
        return write([low = least_, high = most_](FloatVec x) { return clip(x, low, high); });
      case Kind::LeakyRelu:
        return write([a](FloatVec x) { return select(x > FloatVec(0.0f), x, x * a); });
      case Kind::Elu:
        return write([a](FloatVec x) { return select(x > FloatVec(0.0f), x, a * fast_expm1(x)); });
      case Kind::HardSigmoid: return write([=](FloatVec x) { return relu6_shifted(x) / six; });
      case Kind::HardSwish: return write([=](FloatVec x) { return x * relu6_shifted(x) / six; });
      case Kind::Mish: return write(formulas::Mish());
      case Kind::Sigmoid: return write(formulas::Sigmoid());
      case Kind::Silu: return write(formulas::Silu());
      case Kind::Tanh: return write(formulas::Tanh());
    }
  }

  VecOf<C> clipped(VecOf<C> sum, VecOf<C> term) const { return clip(sum + term, low_, high_); }
  C clipped(C sum, C term) const {
    const C x = sum + term, raised = x < low_ ? low_ : x;
    return raised > high_ ? high_ : raised;
  }

  /// Writes results [at, at + count) of y from sums with their terms.
  void write(const C* sums, int64_t at, int64_t count) const {
    using Kind = ConvActivation::Kind;
    const C a = static_cast<C>(activation_.a), b = static_cast<C>(activation_.b);
    const auto between = [](C x, C low, C high) {
      const C raised = x < low ? low : x;
      return raised > high ? high : raised;
    };
    switch (activation_.kind) {
      case Kind::Clip: return map(sums, at, count, [&](C x) { return between(x, a, b); });
      case Kind::LeakyRelu: return map(sums, at, count, [&](C x) { return x > C(0) ? x : x * a; });
      case Kind::Elu:
        return map_formula(sums, at, count,
                           [&]<class X>(X x) { return select(x > X(0), x, X(a) * fast_expm1(x)); });
      case Kind::HardSigmoid: return map(sums, at, count, formulas::HardSigmoid());
      case Kind::HardSwish: return map(sums, at, count, formulas::HardSwish());
      case Kind::Mish: return map_formula(sums, at, count, formulas::Mish());
      case Kind::Sigmoid: return map_formula(sums, at, count, formulas::Sigmoid());
      case Kind::Silu: return map_formula(sums, at, count, formulas::Silu());
      case Kind::Tanh: return map_formula(sums, at, count, formulas::Tanh());
    }
  }

 private:
  static FloatVec clip(FloatVec x, float low, float high) {
    return at_most(larger(FloatVec(low), x), high);
  }
  static DoubleVec clip(DoubleVec x, double low, double high) {
    const DoubleVec raised = select(x < DoubleVec(low), DoubleVec(low), x);
    return select(raised > DoubleVec(high), DoubleVec(high), raised);
  }

  template <class F>
  void map_pixels(const F& f, const float* sums, int64_t stride, int64_t pixels, int64_t output,
                  int64_t count, const int64_t* at) const {
    constexpr int64_t kCount = FloatVec::kCount;
    const auto load = [](const T* from, int64_t some) {
      return some == kCount ? FloatVec::load(from) : FloatVec::load(from, some);
    };
    const F formula = f;  // which, like the next two, no result overwrites
    const T* z = z_;
    T* y = y_;
    for (int64_t o = 0; o < count; o += kCount) {
      const int64_t some = std::min(kCount, count - o);
      const FloatVec term = terms(output + o, some);
      for (int64_t p = 0; p < pixels; ++p) {
        const int64_t to = at[p] + output + o;
        FloatVec x = FloatVec::load(sums + p * stride + o) + term;
        if (z) x = x + load(z + to, some);
        some == kCount ? formula(x).store(y + to) : formula(x).store(y + to, some);
      }
    }
  }

  template <class F>
  void map(const C* sums, int64_t at, int64_t count, const F& f) const {
    T* y = y_ + at;
    if (z_) {
      const T* z = z_ + at;
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i) y[i] = stored<T>(f(sums[i] + computed(z[i])));
    } else {
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i) y[i] = stored<T>(f(sums[i]));
    }
  }

  // Formulas that loops over single elements do not vectorize.
  template <class F>
  void map_formula(const C* sums, int64_t at, int64_t count, const F& f) const {
    if constexpr (std::is_same_v<T, float>) {
      if (z_)
        map_vectors([&](auto x, auto z) { return f(x + z); }, count, y_ + at, sums, z_ + at);
      else
        map_vectors(f, count, y_ + at, sums);
    } else if constexpr (std::is_same_v<C, float>) {
      float part[kRowChunk];
      for (int64_t i = 0; i < count; i += kRowChunk) {
        const int64_t some = std::min(kRowChunk, count - i);
        for (int64_t j = 0; j < some; ++j)
          part[j] = z_ ? sums[i + j] + computed(z_[at + i + j]) : sums[i + j];
        map_vectors(f, some, part, part);
        for (int64_t j = 0; j < some; ++j) y_[at + i + j] = stored<T>(part[j]);
      }
    } else {
      map(sums, at, count, f);
    }
  }

  const T* bias_ = nullptr;
  const T* z_ = nullptr;
  T* y_ = nullptr;
  ConvActivation activation_;
  bool clips_ = true;
  // Of the activation, and of `clipped`.
  C least_ = -std::numeric_limits<C>::infinity(), most_ = std::numeric_limits<C>::infinity();
  C low_ = -std::numeric_limits<C>::infinity(), high_ = std::numeric_limits<C>::infinity();
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
