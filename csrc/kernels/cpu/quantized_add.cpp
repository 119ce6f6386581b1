// QuantizedAdd, QuantizedMul and QuantizedIntegerMul: both operands are widened and scaled in
// registers, and the result is quantized there.
#include <array>
#include <functional>

#include "kernels/copy_geometry.h"
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

/// The numbers op(a, b) of all elements, as results.
template <class A, class B, class Op>
void write_all(const KernelArgs& args, const QuantizedTerms<A>& a, const QuantizedTerms<B>& b,
               const RealResults& results, const Op& op) {
  constexpr int64_t kBlock = 16;
  const int64_t count = args.in[kA].element_count(), whole = count / kBlock * kBlock;
  parallel_ranges(args.context, whole / kBlock, grain_for(kBlock), [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kBlock;
    results.write(first, (end - begin) * kBlock,
                  [=](int64_t j) { return op(a.at(first + j), b.at(first + j)); });
  });
  if (whole == count) return;
  A last_a[kBlock] = {};
  B last_b[kBlock] = {};
  const QuantizedTerms<A> rest_a = a.last(whole, count - whole, last_a);
  const QuantizedTerms<B> rest_b = b.last(whole, count - whole, last_b);
  results.write(whole, count - whole, [&](int64_t j) { return op(rest_a.at(j), rest_b.at(j)); });
}

template <class Op>
struct OfReals {
  template <class A, class B>
  static void run(const KernelArgs& args) {
    const QuantizedTerms<A> a(args.in[kA].data, Each(args, kAScale), Each(args, kAZero));
    const QuantizedTerms<B> b(laid_out_as_a(args), Each(args, kBScale), Each(args, kBZero));
    write_all(args, a, b, RealResults(args, kYScale, kYZero), Op());
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
    write_all(args, a, b, RealResults(rounding, 0, -1),
              [=](FloatVec x, FloatVec y) { return x * y * scale * ratio + zero; });
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
                     .run = quantized_pair<OfReals<std::plus<>>>,
                     .unsupported = copy_unsupported,
                     .workspace_bytes = workspace_bytes,
                     .output_strides = strides_of_a,
                     .prepare = prepare_pair,
                     .input_rules = {LayoutRule::MemoryFormat, LayoutRule::Any}});
REGISTER_CPU_KERNEL({.op = "QuantizedMul",
                     .name = "quantized_mul_cpu",
                     .dtypes = {DType::Int8, DType::UInt8},
                     .run = quantized_pair<OfReals<std::multiplies<>>>,
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
