// NarrowCast: between float32 and floats of 4 and 8 bits. Bytes moved: x and y once; a byte is
// looked up in a table of its 256 numbers, and made of the bits of its float32.
#include <array>
#include <bit>
#include <cmath>

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

/// narrow_bits() without branches, for types with a fraction.
class NarrowRounder {
 public:
  NarrowRounder(DType dtype, bool saturate) {
    const NarrowFormat f = narrow_format(dtype);
    shift_ = static_cast<uint32_t>(23 - f.fraction_bits);
    rebias_ = static_cast<uint32_t>(127 - f.bias) << f.fraction_bits;
    least_normal_ = static_cast<uint32_t>(128 - f.bias) << 23;
    // Adding it rounds to whole numbers of the least one, ties to even.
    magic_ = std::ldexp(1.0f, 24 - f.bias - f.fraction_bits);
    sign_shift_ = static_cast<uint32_t>(31 - f.exponent_bits - f.fraction_bits);
    largest_ = f.largest;
    nan_ = f.nan < 0 ? uint32_t{1} << (31 - sign_shift_) : static_cast<uint32_t>(f.nan);
    beyond_ = nan_;
    if (f.infinity >= 0) beyond_ = static_cast<uint32_t>(f.infinity);
    if (saturate || f.nan < 0) beyond_ = largest_;
    zero_sign_ = f.one_zero ? 0 : ~uint32_t{0};
  }

  void round(const float* x, int64_t count, uint8_t* y) const {
    const NarrowRounder own = *this;  // which no result overwrites
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) y[i] = own.bits(std::bit_cast<uint32_t>(x[i]));
  }

 private:
  uint8_t bits(uint32_t x) const {
    constexpr uint32_t kInfinity = 0x7f800000;
    const uint32_t m = x & 0x7fffffff, sign = (x ^ m) >> sign_shift_;
    const uint32_t even = (m >> shift_) & 1, half = (uint32_t{1} << (shift_ - 1)) - 1;
    const uint32_t normal = ((m + even + half) >> shift_) - rebias_;
    const uint32_t small =
        std::bit_cast<uint32_t>(std::bit_cast<float>(m) + magic_) - std::bit_cast<uint32_t>(magic_);
    uint32_t found = m < least_normal_ ? small : normal;
    found = found > largest_ ? beyond_ : found;
    found = m > kInfinity ? nan_ : found;
    return static_cast<uint8_t>(found | (found == 0 ? sign & zero_sign_ : sign));
  }

  uint32_t shift_, rebias_, least_normal_, sign_shift_, largest_, nan_, beyond_, zero_sign_;
  float magic_;
};

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
  if (y.dtype != DType::Float8E8M0) {
    const NarrowRounder rounder(y.dtype, rounding.saturate);
    return parallel_ranges(args.context, count, grain_for(2), [&](int64_t begin, int64_t end) {
      rounder.round(x.as<float>() + begin, end - begin, y.as<uint8_t>() + begin);
    });
  }
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
