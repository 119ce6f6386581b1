// Requantize: bytes are widened and scaled in registers, and quantized there by another scale. Of
// many bytes, the 256 results are computed first.
#include "kernels/cpu/byte_table.h"
#include "kernels/cpu/quantized_terms.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

enum Operand : int { kX, kXScale, kXZero, kYScale, kYZero };

template <class Q>
void requantize_bytes(const KernelArgs& args) {
  const QuantizedTerms<Q> x(args.in[kX].data, Each(args, kXScale), Each(args, kXZero));
  const RealResults results(args, kYScale, kYZero);
  constexpr int64_t kBlock = 16;
  const int64_t count = args.in[kX].element_count(), whole = count / kBlock * kBlock;
  parallel_ranges(args.context, whole / kBlock, grain_for(kBlock), [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kBlock;
    results.write(first, (end - begin) * kBlock, [=](int64_t j) { return x.at(first + j); });
  });
  if (whole == count) return;
  Q room[kBlock] = {};
  const QuantizedTerms<Q> rest = x.last(whole, count - whole, room);
  results.write(whole, count - whole, [&](int64_t j) { return rest.at(j); });
}

void requantize_each(const KernelArgs& args) {
  if (args.in[kX].dtype == DType::Int8)
    requantize_bytes<int8_t>(args);
  else
    requantize_bytes<uint8_t>(args);
}

/// The results of all bytes.
ByteTable table_of(const KernelArgs& args) {
  ByteTable values = byte_values(), table;
  const Sizes sizes{kByteValues}, strides{1};
  const auto line = [&](DType dtype, void* data) {
    return TensorView{data, dtype, 1, sizes.data(), strides.data()};
  };
  std::vector<TensorView> in(args.in.begin(), args.in.end());
  in[kX] = line(args.in[kX].dtype, values.entries);
  const TensorView out = line(args.out[0].dtype, table.entries);
  requantize_each({args.facts, in, std::span(&out, 1), args.workspace, nullptr, args.context});
  return table;
}

void requantize(const KernelArgs& args) {
  const int64_t count = args.in[kX].element_count();
  if (count < kLeastLookedUp) return requantize_each(args);
  const ByteTable table = table_of(args);
  const auto* x = args.in[kX].as<uint8_t>();
  auto* y = args.out[0].as<uint8_t>();
  parallel_ranges(args.context, count, grain_for(1), [&](int64_t begin, int64_t end) {
    look_up(table, x + begin, end - begin, y + begin);
  });
}

std::vector<Sizes> strides_of_x(const StepFacts& facts) {
  return {facts.inputs[kX].layout.strides};
}

REGISTER_CPU_KERNEL({.op = "Requantize",
                     .name = "requantize_cpu",
                     .dtypes = {DType::Int8, DType::UInt8},
                     .run = requantize,
                     .output_strides = strides_of_x,
                     .input_rules = {LayoutRule::MemoryFormat}});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
