// NarrowCast: between float32 and floats of 4 and 8 bits. Bytes moved: x and y once; a byte is
// looked up in a table of its 256 numbers.
#include <array>

#include "base/narrow_number.h"
#include "kernels/cpu/cpu_kernel.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

using Numbers = std::array<float, 256>;

std::shared_ptr<const void> prepare(const StepFacts& facts) {
  const DType from = facts.inputs[0].dtype;
  if (!is_narrow_float(from)) return nullptr;
  auto numbers = std::make_shared<Numbers>();
  for (size_t i = 0; i < numbers->size(); ++i)
    (*numbers)[i] = narrow_value(static_cast<uint8_t>(i), from);
  return numbers;
}

void run_narrow_cast(const KernelArgs& args) {
  const TensorView &x = args.in[0], &y = args.out[0];
  const int64_t count = x.element_count();
  if (args.prepared) {
    const Numbers& numbers = *static_cast<const Numbers*>(args.prepared);
    parallel_ranges(args.context, count, grain_for(1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y.as<float>()[i] = numbers[x.as<uint8_t>()[i]];
    });
    return;
  }
  const Attrs& attrs = args.facts.node().attrs;
  NarrowRounding rounding;
  rounding.saturate = attrs.flag("saturate");
  const std::string mode = attrs.string("round_mode", "up");
  if (mode == "down") rounding.powers = PowerRounding::Down;
  if (mode == "nearest") rounding.powers = PowerRounding::Nearest;
  parallel_ranges(args.context, count, grain_for(16), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      y.as<uint8_t>()[i] = narrow_bits(x.as<float>()[i], y.dtype, rounding);
  });
}

REGISTER_CPU_KERNEL({.op = "NarrowCast",
                     .name = "narrow_cast_cpu",
                     .dtypes = kNarrowFloats | DTypeSet{DType::Float32},
                     .run = run_narrow_cast,
                     .prepare = prepare});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
