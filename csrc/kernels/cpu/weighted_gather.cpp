// WeightedGather on rows of channels: the sums of a block of points are made side by side, vectors
// of channels in registers, and turned where they are stored; of few channels, vectors of points.
// Bytes moved: a row of x for each tap of a point, y once.
#include "kernels/cpu/panel_product.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

struct Gathered {
  int64_t images, places, channels, taps, points;

  explicit Gathered(const StepFacts& facts)
      : images(facts.inputs[0].layout.sizes[0]),
        places(facts.inputs[0].layout.sizes[1]),
        channels(facts.inputs[0].layout.sizes[2]),
        taps(facts.inputs[1].layout.sizes[1]),
        points(facts.inputs[1].layout.sizes[2]) {}
};

/// The taps of some neighbouring points of an image; those of a point lie `s.points` apart.
template <class C>
struct Taps {
  const Gathered& s;
  const C* x;
  const int64_t* index;
  const C* weights;
};

/// y[c, p] of `count` points, at most kRowChunk: channel by channel, for few of them.
template <class C>
void gather_channels(const Taps<C>& of, int64_t count, C* y) {
  const Gathered& s = of.s;
  for (int64_t c = 0; c < s.channels; ++c, y += s.points) {
    C sums[kRowChunk];
    for (int64_t t = 0; t < s.taps; ++t) {
      const int64_t* index = of.index + t * s.points;
      const C *weights = of.weights + t * s.points, *x = of.x + c;
      if (t == 0) {
        ORTM_SIMD
        for (int64_t p = 0; p < count; ++p) sums[p] = weights[p] * x[index[p] * s.channels];
      } else {
        ORTM_SIMD
        for (int64_t p = 0; p < count; ++p) sums[p] += weights[p] * x[index[p] * s.channels];
      }
    }
    std::copy_n(sums, count, y);
  }
}

FloatVec load_channels(const float* from, int64_t count) {
  return count < FloatVec::kCount ? FloatVec::load(from, count) : FloatVec::load(from);
}

/// y[c, p] of `count` points, at most a vector of them, whose channels are vectors.
void gather_pixels(const Taps<float>& of, int64_t count, float* y) {
  constexpr int64_t kCount = FloatVec::kCount;
  const Gathered& s = of.s;
  for (int64_t channel = 0; channel < s.channels; channel += kCount) {
    const int64_t some = std::min(kCount, s.channels - channel);
    FloatVec square[kCount];
    for (int64_t p = 0; p < count; ++p) {
      FloatVec sum(0.0f);
      for (int64_t t = 0; t < s.taps; ++t) {
        const int64_t at = t * s.points + p;
        const FloatVec row = load_channels(of.x + of.index[at] * s.channels + channel, some);
        sum = t == 0 ? FloatVec(of.weights[at]) * row
                     : multiply_add(FloatVec(of.weights[at]), row, sum);
      }
      square[p] = sum;
    }
    for (int64_t p = count; p < kCount; ++p) square[p] = FloatVec(0.0f);
    transpose_square(square);
    for (int64_t c = 0; c < some; ++c) {
      float* to = y + (channel + c) * s.points;
      count < kCount ? square[c].store(to, count) : square[c].store(to);
    }
  }
}

template <class C>
void gather(const KernelArgs& args) {
  const Gathered s(args.facts);
  constexpr int64_t kFewChannels = 4;
  const bool pixels = std::is_same_v<C, float> && s.channels >= kFewChannels;
  const int64_t block = pixels ? FloatVec::kCount : kRowChunk, blocks = ceil_div(s.points, block);
  const auto run = [&](int64_t image, int64_t first) {
    const int64_t at = image * s.taps * s.points + first, count = std::min(block, s.points - first);
    const Taps<C> taps{s, args.in[0].as<C>() + image * s.places * s.channels,
                       args.in[1].as<int64_t>() + at, args.in[2].as<C>() + at};
    C* y = args.out[0].as<C>() + image * s.channels * s.points + first;
    if constexpr (std::is_same_v<C, float>)
      if (pixels) return gather_pixels(taps, count, y);
    gather_channels(taps, count, y);
  };
  parallel_ranges(args.context, s.images * blocks, grain_for(block * s.taps * s.channels),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i) run(i / blocks, i % blocks * block);
                  });
}

void weighted_gather(const KernelArgs& args) {
  args.in[0].dtype == DType::Float64 ? gather<double>(args) : gather<float>(args);
}

REGISTER_CPU_KERNEL({.op = "WeightedGather",
                     .name = "weighted_gather_cpu",
                     .dtypes = {DType::Float32, DType::Float64},
                     .run = weighted_gather});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
