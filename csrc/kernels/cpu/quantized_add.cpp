// QuantizedAdd: both operands are widened and scaled in registers, and the sum is quantized there.
#include "kernels/cpu/byte_vec.h"
#include "kernels/cpu/integer_finish.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

enum Operand : int { kA, kB, kAScale, kBScale, kAZero, kBZero, kYScale, kYZero };

/// One tensor of bytes and what makes numbers of it.
template <class Q>
struct Terms {
  const Q* bytes;
  FloatVec zero, scale;

  Terms(const KernelArgs& args, const void* data, int which)
      : bytes(static_cast<const Q*>(data)),
        zero(static_cast<float>(Each(args, kAZero + which).point(0))),
        scale(Each(args, kAScale + which).number(0)) {}
  FloatVec at(int64_t i) const { return (load_wide<FloatVec>(bytes + i) - zero) * scale; }
  /// The last `count` < 16 bytes with room behind them.
  Terms last(int64_t from, int64_t count, Q* room) const {
    Terms terms = *this;
    std::copy_n(bytes + from, count, room);
    terms.bytes = room - from;
    return terms;
  }
};

/// b, in the order of a in memory.
size_t workspace_bytes(const StepFacts& facts) {
  const Layout &a = facts.inputs[kA].layout, &b = facts.inputs[kB].layout;
  return a.strides == b.strides ? 0 : static_cast<size_t>(element_count(b.sizes));
}

const void* laid_out_as_a(const KernelArgs& args) {
  const Layout &a = args.facts.inputs[kA].layout, &b = args.facts.inputs[kB].layout;
  if (a.strides == b.strides) return args.in[kB].data;
  const auto* from = args.in[kB].as<uint8_t>();
  auto* to = static_cast<uint8_t*>(args.workspace);
  const int64_t count = element_count(b.sizes);
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, there = 0, here = 0;
    for (size_t d = b.sizes.size(); d-- > 0; rest /= b.sizes[d]) {
      there += rest % b.sizes[d] * b.strides[d];
      here += rest % b.sizes[d] * a.strides[d];
    }
    to[here] = from[there];
  }
  return to;
}

template <class A, class B>
void add(const KernelArgs& args) {
  const Terms<A> a(args, args.in[kA].data, 0);
  const Terms<B> b(args, laid_out_as_a(args), 1);
  const RealResults results(args, kYScale, kYZero);
  constexpr int64_t kBlock = 16;
  const int64_t count = args.in[kA].element_count(), whole = count / kBlock * kBlock;
  parallel_ranges(args.context, whole / kBlock, grain_for(kBlock), [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kBlock;
    results.write(first, (end - begin) * kBlock,
                  [=](int64_t j) { return a.at(first + j) + b.at(first + j); });
  });
  if (whole == count) return;
  A last_a[kBlock] = {};
  B last_b[kBlock] = {};
  const Terms<A> rest_a = a.last(whole, count - whole, last_a);
  const Terms<B> rest_b = b.last(whole, count - whole, last_b);
  results.write(whole, count - whole,
                [&](int64_t j) { return rest_a.at(whole + j) + rest_b.at(whole + j); });
}

void quantized_add(const KernelArgs& args) {
  const bool signed_a = args.in[kA].dtype == DType::Int8,
             signed_b = args.in[kB].dtype == DType::Int8;
  if (signed_a)
    signed_b ? add<int8_t, int8_t>(args) : add<int8_t, uint8_t>(args);
  else
    signed_b ? add<uint8_t, int8_t>(args) : add<uint8_t, uint8_t>(args);
}

std::vector<Sizes> strides_of_a(const StepFacts& facts) {
  return {facts.inputs[kA].layout.strides};
}

REGISTER_CPU_KERNEL({.op = "QuantizedAdd",
                     .name = "quantized_add_cpu",
                     .dtypes = {DType::Int8, DType::UInt8},
                     .run = quantized_add,
                     .workspace_bytes = workspace_bytes,
                     .output_strides = strides_of_a,
                     .input_rules = {LayoutRule::MemoryFormat, LayoutRule::Any}});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
