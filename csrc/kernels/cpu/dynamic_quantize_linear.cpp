// DynamicQuantizeLinear in two passes over x: its range, then the bytes.
#include <limits>

#include "kernels/cpu/float_vec.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// Elements that a thread takes at once; each part has a minimum and a maximum.
constexpr int64_t kPart = 1 << 15;

struct Range {
  float least = 0.0f, most = 0.0f;  // 0 is always within
};

// In lanes, which the compiler may not do, as it cannot know that no order matters: NaN is passed
// over, and the result is never -0.
Range range_of(const float* x, int64_t count) {
  constexpr int64_t kLanes = FloatVec::kCount;
  FloatVec lows(0.0f), highs(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const FloatVec here = FloatVec::load(x + i);
    lows = select(here < lows, here, lows);
    highs = select(here > highs, here, highs);
  }
  Range range;
  const auto widen = [&](float value) {
    range.least = value < range.least ? value : range.least;
    range.most = value > range.most ? value : range.most;
  };
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    widen(lows.v[lane]);
    widen(highs.v[lane]);
  }
  for (; i < count; ++i) widen(x[i]);
  return range;
}

void quantize(const float* x, int64_t count, float scale, float zero, uint8_t* y) {
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) {
    float place = __builtin_rintf(x[i] / scale) + zero;
    place = place > 0.0f ? place : 0.0f;  // NaN becomes 0
    place = place < 255.0f ? place : 255.0f;
    y[i] = static_cast<uint8_t>(static_cast<int32_t>(place));
  }
}

size_t workspace_bytes(const StepFacts& facts) {
  const int64_t count = element_count(facts.inputs[0].layout.sizes);
  return static_cast<size_t>(ceil_div(count, kPart)) * sizeof(Range);
}

void dynamic_quantize(const KernelArgs& args) {
  const auto* x = args.in[0].as<float>();
  const int64_t count = args.in[0].element_count(), parts = ceil_div(count, kPart);
  auto* ranges = static_cast<Range*>(args.workspace);
  const auto each_part = [&](const auto& body) {
    parallel_ranges(args.context, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part)
        body(part, part * kPart, std::min(kPart, count - part * kPart));
    });
  };
  each_part(
      [&](int64_t part, int64_t begin, int64_t size) { ranges[part] = range_of(x + begin, size); });
  Range range;
  for (int64_t part = 0; part < parts; ++part) {
    range.least = std::min(range.least, ranges[part].least);
    range.most = std::max(range.most, ranges[part].most);
  }
  const float width = range.most - range.least;
  const float scale = width == 0.0f ? 1.0f : width / 255.0f;
  const float point = __builtin_rintf(-range.least / scale);
  const float zero = std::clamp(point > 0.0f ? point : 0.0f, 0.0f, 255.0f);
  *args.out[1].as<float>() = scale;
  *args.out[2].as<uint8_t>() = static_cast<uint8_t>(zero);
  auto* y = args.out[0].as<uint8_t>();
  each_part([&](int64_t, int64_t begin, int64_t size) {
    quantize(x + begin, size, scale, zero, y + begin);
  });
}

REGISTER_CPU_KERNEL({.op = "DynamicQuantizeLinear",
                     .name = "dynamic_quantize_linear_cpu",
                     .dtypes = {DType::Float32},
                     .run = dynamic_quantize,
                     .workspace_bytes = workspace_bytes});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
