// QuantizedAdd, QuantizedMul and QuantizedIntegerMul: both operands are widened and scaled in
// registers, and the result is quantized there, in fixed point where that is the same.
#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "kernels/copy_geometry.h"
#include "kernels/cpu/fixed_steps.h"
#include "kernels/cpu/quantized_terms.h"
#include "kernels/cpu/strided_copy.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

enum Operand : int { kA, kB, kAScale, kBScale, kAZero, kBZero, kYScale, kYZero };

bool is_laid_out_as_a(const StepFacts& facts) {
  return facts.inputs[kA].layout.strides == facts.inputs[kB].layout.strides;
}

/// b, in the order of a in memory.
size_t workspace_bytes(const StepFacts& facts) {
  return is_laid_out_as_a(facts)
             ? 0
             : static_cast<size_t>(element_count(facts.inputs[kB].layout.sizes));
}

std::shared_ptr<const void> prepare_pair(const StepFacts& facts) {
  const Layout &a = facts.inputs[kA].layout, &b = facts.inputs[kB].layout;
  return std::make_shared<const StridedCopy>(make_copy(b.sizes, a.strides, b.strides, 1));
}

const void* laid_out_as_a(const KernelArgs& args) {
  if (is_laid_out_as_a(args.facts)) return args.in[kB].data;
  run_copy(*static_cast<const StridedCopy*>(args.prepared), args.workspace, args.in[kB].data,
           args.context);
  return args.workspace;
}

/// The numbers op(a, b) of all elements, as results. fixed(first, count) writes those from `first`
/// on until one is in doubt, and returns how many.
template <class A, class B, class Op, class Fixed>
void write_all(const KernelArgs& args, const QuantizedTerms<A>& a, const QuantizedTerms<B>& b,
               const RealResults& results, const Op& op, const Fixed& fixed) {
  constexpr int64_t kBlock = 16, kWide = 4 * FloatVec::kCount;
  const int64_t count = args.in[kA].element_count(), whole = count / kBlock * kBlock;
  parallel_ranges(args.context, whole / kBlock, grain_for(kBlock), [&](int64_t begin, int64_t end) {
    const int64_t last = end * kBlock;
    const auto write = [&](int64_t first, int64_t some) {
      results.write(first, some, [=](int64_t j) { return op(a.at(first + j), b.at(first + j)); });
    };
    for (int64_t first = begin * kBlock; first < last;) {
      first += fixed(first, last - first);
      const int64_t some = fixed.is_usual() ? std::min(kWide, last - first) : last - first;
      write(first, some);
      first += some;
    }
  });
  if (whole == count) return;
  A last_a[kBlock] = {};
  B last_b[kBlock] = {};
  const QuantizedTerms<A> rest_a = a.last(whole, count - whole, last_a);
  const QuantizedTerms<B> rest_b = b.last(whole, count - whole, last_b);
  results.write(whole, count - whole, [&](int64_t j) { return op(rest_a.at(j), rest_b.at(j)); });
}

/// For write_all(): nothing is in fixed point.
struct NoFixed {
  bool is_usual() const { return false; }
  int64_t operator()(int64_t, int64_t) const { return 0; }
};

/// For write_all(): `Steps` of the operands, until one is in doubt.
template <class A, class B, class Y, class Steps>
struct FixedBytes {
  const A* a;
  const B* b;
  Y *y, least;
  Steps steps;

  bool is_usual() const {
#if defined(__AVX2__)
    return steps.is_usual();
#else
    return false;
#endif
  }
  int64_t operator()([[maybe_unused]] int64_t first, [[maybe_unused]] int64_t count) const {
    int64_t j = 0;
#if defined(__AVX2__)
    constexpr int64_t kWide = 4 * FloatVec::kCount;
    const FixedBytes own = *this;  // which stores of bytes cannot change
    if (!is_usual()) return 0;
    while (j + kWide <= count && write_fixed(own.steps, own.a + first + j, own.b + first + j,
                                             own.least, own.y + first + j))
      j += kWide;
#endif
    return j;
  }
};

template <class Op, class Steps>
struct OfReals {
  template <class A, class B>
  static void run(const KernelArgs& args) {
    const void* of_b = laid_out_as_a(args);
    const QuantizedTerms<A> a(args.in[kA].data, Each(args, kAScale), Each(args, kAZero));
    const QuantizedTerms<B> b(of_b, Each(args, kBScale), Each(args, kBZero));
    const RealResults results(args, kYScale, kYZero);
    const auto scale = [&](Operand scale, Operand zero) {
      return ByteScale{Each(args, scale).number(0), Each(args, zero).point(0)};
    };
    const Steps steps(scale(kAScale, kAZero), scale(kBScale, kBZero), scale(kYScale, kYZero));
    const auto write = [&]<class Y>(Y) {
      const bool relu = args.facts.node().attrs.integer("relu", 0) != 0;
      const auto least =
          static_cast<Y>(relu ? Each(args, kYZero).point(0) : std::numeric_limits<Y>::lowest());
      write_all(args, a, b, results, Op(),
                FixedBytes<A, B, Y, Steps>{a.bytes, b.bytes, static_cast<Y*>(args.out[0].data),
                                           least, steps});
    };
    args.out[0].dtype == DType::Int8 ? write(int8_t()) : write(uint8_t());
  }
};

struct OfIntegers {
  enum Operand : int { kAPoint = 2, kBPoint, kScale, kRatio, kYPoint };

  template <class A, class B>
  static void run(const KernelArgs& args) {
    // Products have scale and zero point when they are rounded.
    float unit = 1.0f;
    const std::array<TensorView, 1> units = {{{&unit, DType::Float32}}};
    KernelArgs rounding = args;
    rounding.in = units;
    Each one(rounding, 0);
    const QuantizedTerms<A> a(args.in[kA].data, one, Each(args, kAPoint));
    const QuantizedTerms<B> b(laid_out_as_a(args), one, Each(args, kBPoint));
    const FloatVec scale(Each(args, kScale).number(0)), ratio(Each(args, kRatio).number(0)),
        zero(static_cast<float>(Each(args, kYPoint).point(0)));
    write_all(
        args, a, b, RealResults(rounding, 0, -1),
        [=](FloatVec x, FloatVec y) { return x * y * scale * ratio + zero; }, NoFixed());
  }
};

template <class Pair>
void quantized_pair(const KernelArgs& args) {
  const bool signed_a = args.in[kA].dtype == DType::Int8,
             signed_b = args.in[kB].dtype == DType::Int8;
  if (signed_a)
    signed_b ? Pair::template run<int8_t, int8_t>(args) : Pair::template run<int8_t, uint8_t>(args);
  else
    signed_b ? Pair::template run<uint8_t, int8_t>(args)
             : Pair::template run<uint8_t, uint8_t>(args);
}

std::vector<Sizes> strides_of_a(const StepFacts& facts) {
  return {facts.inputs[kA].layout.strides};
}

REGISTER_CPU_KERNEL({.op = "QuantizedAdd",
                     .name = "quantized_add_cpu",
                     .dtypes = {DType::Int8, DType::UInt8},
                     .run = quantized_pair<OfReals<std::plus<>, FixedSum>>,
                     .unsupported = copy_unsupported,
                     .workspace_bytes = workspace_bytes,
                     .output_strides = strides_of_a,
                     .prepare = prepare_pair,
                     .input_rules = {LayoutRule::MemoryFormat, LayoutRule::Any}});
REGISTER_CPU_KERNEL({.op = "QuantizedMul",
                     .name = "quantized_mul_cpu",
                     .dtypes = {DType::Int8, DType::UInt8},
                     .run = quantized_pair<OfReals<std::multiplies<>, FixedProduct>>,
                     .unsupported = copy_unsupported,
                     .workspace_bytes = workspace_bytes,
                     .output_strides = strides_of_a,
                     .prepare = prepare_pair,
                     .input_rules = {LayoutRule::MemoryFormat, LayoutRule::Any}});
REGISTER_CPU_KERNEL({.op = "QuantizedIntegerMul",
                     .name = "quantized_integer_mul_cpu",
                     .dtypes = {DType::Int8, DType::UInt8},
                     .run = quantized_pair<OfIntegers>,
                     .unsupported = copy_unsupported,
                     .workspace_bytes = workspace_bytes,
                     .output_strides = strides_of_a,
                     .prepare = prepare_pair,
                     .input_rules = {LayoutRule::MemoryFormat, LayoutRule::Any}});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
