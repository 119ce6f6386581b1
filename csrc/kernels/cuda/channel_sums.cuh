// Sums over the channels of row-major and channels-last tensors, in parts: means with sums of
// squared differences, or sums of a gradient (also of a Relu behind a norm) and of its product
// with x. Blocks take parts of a
// channel; what follows adds up the parts in their order. How channels are cut follows from the
// shape only. Variances are sums of squared differences from an element of the same channel,
// combined by T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm
// for computing sample variances", 1979. Bytes moved: each operand once.
#pragma once

#include "kernels/cuda/fast_divisor.h"
#include "kernels/cuda/norm.cuh"

namespace ortmodule::cuda {

inline constexpr int kChannelThreads = 256;
/// Blocks that add up parts: as many as a large GPU runs at once.
inline constexpr int64_t kMostChannelBlocks = 1024;
/// Rows that each thread should have before they are shared out further.
inline constexpr int64_t kRowsOfThread = 4;
/// Elements that the kernels can number.
inline constexpr int64_t kMostChannelElements = int64_t{1} << 30;

/// A tensor as [images, channels, pixels] or, with the channels innermost, as rows of channels:
/// then each pixel is an image.
struct ChannelShape {
  int64_t images = 0, channels = 0, pixels = 1;
  bool rows = false;

  explicit ChannelShape(const Layout& x) : images(x.sizes[0]), channels(x.sizes[1]) {
    for (size_t d = 2; d < x.sizes.size(); ++d) pixels *= x.sizes[d];
    rows = pixels == 1 || !is_contiguous(x);
    if (!rows) return;
    images *= pixels;
    pixels = 1;
  }
  /// Elements of a channel.
  int64_t count() const { return images * pixels; }
};

/// Threads of a block side by side in rows of vectors of kCount elements.
inline int lanes_for(int64_t channels, int count) {
  int lanes = 1;
  while (lanes < kWarp && int64_t{lanes} * count < channels) lanes *= 2;
  return lanes;
}

/// How the images of each channel are cut for the first sums.
struct ChannelParts {
  int64_t count = 1, length = 1;

  ChannelParts(const ChannelShape& s, int vector) {
    const int each = s.channels % vector == 0 ? vector : 1;
    const int lanes = lanes_for(s.channels, each);
    const int64_t tiles = s.rows ? blocks_for(s.channels, int64_t{lanes} * each) : s.channels;
    const int64_t least = s.rows ? kChannelThreads / lanes * kRowsOfThread : 1;
    const int64_t most = std::max<int64_t>(kMostChannelBlocks / tiles, 1);
    length = blocks_for(s.images, std::clamp<int64_t>(blocks_for(s.images, least), 1, most));
    count = blocks_for(s.images, length);
  }
};

// --- numbers of channels -------------------------------------------------------------------------
template <class S, class C>
__device__ __forceinline__ C number_or(const S* from, int64_t i, C other) {
  return from ? static_cast<C>(widened(from[i])) : other;
}
/// What x's difference from the mean is multiplied with.
template <class S, class C>
__device__ __forceinline__ C channel_factor(double inv, const S* scale, int64_t channel) {
  return static_cast<C>(inv * number_or(scale, channel, 1.0));
}

// --- sums of parts -------------------------------------------------------------------------------
/// Mean and sum of squared differences from it.
template <class C>
struct Moments {
  C count, mean, squares;
};
struct CombineMoments {
  template <class C>
  __device__ __forceinline__ Moments<C> operator()(Moments<C> a, Moments<C> b) const {
    const C count = a.count + b.count;
    if (count == 0) return a;
    const C apart = b.mean - a.mean, share = b.count / count;
    return {count, (a.count * a.mean + b.count * b.mean) / count,
            a.squares + b.squares + apart * apart * a.count * share};
  }
};

/// Of a channel whose sums need nothing but x.
template <class C>
struct NoCenter {};

/// What is added up of x: differences from the first element that a thread sees, and their squares.
template <class T>
struct MomentsOf {
  using C = ComputeOf<T>;
  const T* x;

  /// Per channel of a thread: kCount of them, or one to which kCount neighbours belong.
  template <int kCount, int kChannels>
  struct Sums {
    C pivot[kChannels] = {}, sum[kChannels] = {}, squares[kChannels] = {};
    int steps = 0;

    __device__ __forceinline__ void add(const MomentsOf& of, int64_t at,
                                        const NoCenter<C> (&)[kChannels]) {
      C v[kCount];
      load_computed<T, kCount>(v, of.x + at);
      if (steps++ == 0)
#pragma unroll
        for (int k = 0; k < kChannels; ++k) pivot[k] = v[k];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const int c = kChannels == 1 ? 0 : k;
        const C apart = v[k] - pivot[c];
        sum[c] += apart;
        squares[c] += apart * apart;
      }
    }
    __device__ __forceinline__ Moments<C> result(int c) const {
      const C n = static_cast<C>(steps) * (kCount / kChannels);
      if (n == 0) return {0, 0, 0};
      const C moved = sum[c] / n, rest = squares[c] - sum[c] * moved;
      return {n, pivot[c] + moved, rest > 0 || rest != rest ? rest : C(0)};
    }
  };
  using Combine = CombineMoments;
  using Center = NoCenter<C>;
  __device__ __forceinline__ Center center(int64_t) const { return {}; }
};

/// What rounds to zero as T, where positive: half of its least number.
template <class T>
__device__ __forceinline__ ComputeOf<T> rounded_to_zero() {
  if constexpr (std::is_same_v<T, Float16>)
    return 0x1p-25F;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return 0x1p-134F;
  else
    return 0;
}

/// A normalized channel: (x - mean) factor + bias.
template <class C>
struct NormalizedChannel {
  C mean, factor, bias;
  __device__ __forceinline__ C operator()(C x) const { return (x - mean) * factor + bias; }
};

/// dy where a norm's result, as it is stored, passes a Relu.
template <class T>
__device__ __forceinline__ ComputeOf<T> passed(ComputeOf<T> dy, ComputeOf<T> normalized) {
  return normalized <= rounded_to_zero<T>() ? ComputeOf<T>(0) : dy;
}

/// Of a channel's gradient: the mean and, of a Relu behind the norm (kRelu), all that gives the
/// norm's result; scale and bias are null if absent.
template <class T, class S, bool kRelu>
struct GradientSumsOf {
  using C = ComputeOf<T>;
  using Center = std::conditional_t<kRelu, NormalizedChannel<C>, C>;
  const T *dy, *x;
  const S *mean, *inv, *scale, *bias;

  /// What is added up: dy, and dy times the difference from the mean.
  template <int kCount, int kChannels>
  struct Sums {
    C sum[kChannels] = {}, product[kChannels] = {};

    __device__ __forceinline__ void add(const GradientSumsOf& of, int64_t at,
                                        const Center (&center)[kChannels]) {
      C g[kCount], v[kCount];
      load_computed<T, kCount>(g, of.dy + at);
      load_computed<T, kCount>(v, of.x + at);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const int c = kChannels == 1 ? 0 : k;
        C mean;
        if constexpr (kRelu) {
          g[k] = passed<T>(g[k], center[c](v[k]));
          mean = center[c].mean;
        } else {
          mean = center[c];
        }
        sum[c] += g[k];
        product[c] += g[k] * (v[k] - mean);
      }
    }
    __device__ __forceinline__ Moments<C> result(int c) const { return {0, sum[c], product[c]}; }
  };
  struct Combine {
    __device__ __forceinline__ Moments<C> operator()(Moments<C> a, Moments<C> b) const {
      return {0, a.mean + b.mean, a.squares + b.squares};
    }
  };
  __device__ __forceinline__ Center center(int64_t channel) const {
    if constexpr (kRelu)
      return {number_or<S, C>(mean, channel, 0),
              channel_factor<S, C>(number_or(inv, channel, 1.0), scale, channel),
              number_or<S, C>(bias, channel, 0)};
    else
      return number_or<S, C>(mean, channel, 0);
  }
};

/// Sums of a gradient that is computed and written on the way.
template <class Of>
concept WritesGradient = requires(Of of) {
  of.dz;
};

/// Blocks that a multiprocessor shall hold; 0 leaves it to the compiler, which for single elements
/// of float64 spills registers to make room for more than four, and where four tensors are read for
/// more than three.
template <class Of, int kCount>
inline constexpr int kRowsBlocks = WritesGradient<Of>&& kCount > 1              ? 3
                                   : sizeof(typename Of::C) == 8 && kCount == 1 ? 4
                                                                                : 0;

/// partials[part][2][channel] of rows of channels: blocks of lanes by rows.
template <class Of, int kCount>
__global__ __launch_bounds__(
    kChannelThreads,
    (kRowsBlocks<Of, kCount>)) void add_rows_of_channels_cuda(Of of, typename Of::C* partials,
                                                              int64_t rows, int64_t channels,
                                                              int64_t length, int64_t tiles) {
  using C = typename Of::C;
  ORTM_DYNAMIC_SHARED(Moments<C>, scratch);
  const int64_t part = blockIdx.x / tiles, tile = blockIdx.x - part * tiles;
  const int lanes = static_cast<int>(blockDim.x), groups = static_cast<int>(blockDim.y);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t channel = (tile * lanes + x) * kCount;
  const bool exists = channel < channels;
  const int64_t begin = part * length, end = begin + length < rows ? begin + length : rows;
  typename Of::template Sums<kCount, kCount> sums;
  if (exists) {
    typename Of::Center center[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) center[k] = of.center(channel + k);
#pragma unroll 4
    for (int64_t row = begin + y; row < end; row += groups)
      sums.add(of, row * channels + channel, center);
  }
  // One channel of each thread at a time, so that little shared memory is enough.
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    Moments<C> result = sums.result(k);
    scratch[y * lanes + x] = result;
    __syncthreads();
    if (y == 0 && exists) {
      for (int other = 1; other < groups; ++other)
        result = typename Of::Combine()(result, scratch[other * lanes + x]);
      partials[part * 2 * channels + channel + k] = result.mean;
      partials[(part * 2 + 1) * channels + channel + k] = result.squares;
    }
    __syncthreads();
  }
}

/// The same of planes of pixels: a block for each part of each channel.
template <class Of, int kCount>
__global__ __launch_bounds__(kChannelThreads) void add_planes_cuda(Of of, typename Of::C* partials,
                                                                   int64_t images, int64_t channels,
                                                                   int64_t pixels, int64_t length,
                                                                   FastDivisor vectors) {
  using C = typename Of::C;
  ORTM_DYNAMIC_SHARED(Moments<C>, scratch);
  const int64_t part = blockIdx.x / channels, channel = blockIdx.x - part * channels;
  const int64_t begin = part * length, end = begin + length < images ? begin + length : images;
  const uint32_t total = static_cast<uint32_t>(end - begin) * vectors.divisor;
  typename Of::template Sums<kCount, 1> sums;
  const typename Of::Center center[1] = {of.center(channel)};
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < total; i += kChannelThreads) {
    const uint32_t image = vectors.quotient(i), vector = i - image * vectors.divisor;
    sums.add(of, ((begin + image) * channels + channel) * pixels + int64_t{vector} * kCount,
             center);
  }
  const Moments<C> result = block_reduce(sums.result(0), typename Of::Combine(), scratch);
  if (threadIdx.x > 0) return;
  partials[part * 2 * channels + channel] = result.mean;
  partials[(part * 2 + 1) * channels + channel] = result.squares;
}

template <class Of, int kCount>
void launch_sums(const KernelArgs& args, const Of& of, const ChannelShape& s,
                 const ChannelParts& parts, typename Of::C* partials) {
  constexpr size_t kScratch = sizeof(Moments<typename Of::C>) * kChannelThreads;
  if (s.rows) {
    const int lanes = lanes_for(s.channels, kCount);
    const int64_t tiles = blocks_for(s.channels, int64_t{lanes} * kCount);
    ORTM_LAUNCH((add_rows_of_channels_cuda<Of, kCount>), grid_of(parts.count * tiles),
                dim3(static_cast<unsigned>(lanes), static_cast<unsigned>(kChannelThreads / lanes)),
                kScratch, args.context, of, partials, s.images, s.channels, parts.length, tiles);
  } else {
    ORTM_LAUNCH((add_planes_cuda<Of, kCount>), grid_of(parts.count * s.channels),
                dim3(kChannelThreads), kScratch, args.context, of, partials, s.images, s.channels,
                s.pixels, parts.length, FastDivisor(static_cast<uint32_t>(s.pixels / kCount)));
  }
}

}  // namespace ortmodule::cuda
