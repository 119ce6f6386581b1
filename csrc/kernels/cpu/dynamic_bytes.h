// DynamicQuantizeLinear's arithmetic: floats as bytes, of the scale and zero point of their range.
#pragma once

#include <algorithm>

#include "kernels/cpu/float_vec.h"

namespace ortmodule {
inline namespace ORTM_ISA {

struct FloatRange {
  float least = 0.0f, most = 0.0f;  // 0 is always within
};

// In lanes, which the compiler may not do, as it cannot know that no order matters: NaN is passed
// over, and the result is never -0.
inline FloatRange range_of(const float* x, int64_t count) {
  constexpr int64_t kLanes = FloatVec::kCount;
  FloatVec lows(0.0f), highs(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const FloatVec here = FloatVec::load(x + i);
    lows = select(here < lows, here, lows);
    highs = select(here > highs, here, highs);
  }
  FloatRange range;
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

struct DynamicScale {
  float scale, zero;

  explicit DynamicScale(const FloatRange& range) {
    const float width = range.most - range.least;
    scale = width == 0.0f ? 1.0f : width / 255.0f;
    const float point = __builtin_rintf(-range.least / scale);
    zero = std::clamp(point > 0.0f ? point : 0.0f, 0.0f, 255.0f);
  }

  void quantize(const float* x, int64_t count, uint8_t* y) const {
    const float s = scale, z = zero;
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) {
      float place = __builtin_rintf(x[i] / s) + z;
      place = place > 0.0f ? place : 0.0f;  // NaN becomes 0
      place = place < 255.0f ? place : 255.0f;
      y[i] = static_cast<uint8_t>(static_cast<int32_t>(place));
    }
  }
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
