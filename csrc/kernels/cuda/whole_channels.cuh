// Channels that a block goes through alone: it adds them up, finishes their sums and computes the
// results from coefficients in shared memory, all in one launch, where channel_sums.cuh takes
// three. That is for few elements per channel, which the second pass finds in the L2 cache, and for
// so many channels that their blocks keep a GPU busy: the last stages of ConvNets, and small
// images. The shape alone decides. Bytes moved: each operand once from memory, and once from the
// cache.
#pragma once

#include <algorithm>

#include "kernels/cuda/channel_sums.cuh"

namespace ortmodule::cuda {

/// A bound of one block per multiprocessor stands beside it, as the compiler spills for more.
inline constexpr int kWholeThreads = 512;
/// Of a row of channels a block reads what memory moves at least.
inline constexpr int64_t kSectorBytes = 32;
/// Per channel of a block, between finishing and the elements.
inline constexpr int kMostCoefficients = 5;

/// Whether a block should take whole channels: it reads some 50 GB/s, so that the largest take as
/// long as several launches.
inline bool fits_whole(const ChannelShape& s, size_t element_bytes) {
  constexpr int64_t kMostBytes = int64_t{512} << 10, kBytesPerBlock = int64_t{8} << 10;
  const auto width = static_cast<int64_t>(element_bytes);
  const int64_t blocks = s.rows ? blocks_for(s.channels * width, kSectorBytes) : s.channels;
  const int64_t bytes = s.rows ? s.images * kSectorBytes : s.count() * width;
  return bytes <= std::min(kMostBytes, kBytesPerBlock * blocks);
}

/// The combination over the threads of the block that have this one's place in rows of `lanes`
/// (a power of two up to 16), of each of kCount values; in scratch[0] on, by lane and value.
/// `scratch`: as many for each warp. All threads take part.
template <int kCount, class T, class Op>
__device__ __forceinline__ void reduce_columns(T (&values)[kCount], Op op, int lanes, T* scratch) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
#pragma unroll
  for (int k = 0; k < kCount; ++k)
    for (int apart = lanes; apart < kWarp; apart *= 2)
      values[k] = op(values[k], shuffle_xor(values[k], apart));
  const int width = lanes * kCount;
  if (thread % kWarp < lanes)
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      scratch[warp * width + thread % lanes * kCount + k] = values[k];
  __syncthreads();
  if (thread < width) {
    T value = scratch[thread];
    for (int w = 1; w < kWholeThreads / kWarp; ++w) value = op(value, scratch[w * width + thread]);
    scratch[thread] = value;
  }
  __syncthreads();
}

/// A block for `lanes` vectors of kCount channels; its threads lie side by side in rows of lanes.
/// finish(channel, mean, squares, to, stride) writes coefficients of a channel, as map() reads
/// them, from what Of::Sums adds up.
template <class Of, class Finish, class Map, int kCount>
__global__ __launch_bounds__(kWholeThreads,
                             1) void whole_rows_cuda(ORTM_GRID_CONSTANT(Of) of,
                                                     ORTM_GRID_CONSTANT(Finish) finish,
                                                     ORTM_GRID_CONSTANT(Map) map, int64_t rows,
                                                     int64_t channels, int lanes) {
  using C = typename Of::C;
  ORTM_DYNAMIC_SHARED(Moments<C>, scratch);
  const int thread = static_cast<int>(threadIdx.x), width = lanes * kCount;
  const int64_t first = int64_t{blockIdx.x} * width;
  const int64_t channel = first + thread % lanes * kCount;
  const int groups = kWholeThreads / lanes;
  const bool exists = channel < channels;
  typename Of::template Sums<kCount, kCount> sums;
  if (exists) {
    typename Of::Center center[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) center[k] = of.center(channel + k);
#pragma unroll 4
    for (int64_t row = thread / lanes; row < rows; row += groups)
      sums.add(of, row * channels + channel, center);
  }
  Moments<C> results[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) results[k] = sums.result(k);
  reduce_columns<kCount>(results, typename Of::Combine(), lanes, scratch);
  C* const coefficients =
      reinterpret_cast<C*>(scratch + width * (kWholeThreads / kWarp));  // [coefficient, width]
  if (thread < width && first + thread < channels)
    finish(first + thread, static_cast<double>(scratch[thread].mean),
           static_cast<double>(scratch[thread].squares), coefficients + thread, width);
  __syncthreads();
  if (!exists || !map) return;
  C c[Map::kUsed][kCount];
#pragma unroll
  for (int n = 0; n < Map::kUsed; ++n)
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      c[n][k] = coefficients[n * width + thread % lanes * kCount + k];
#pragma unroll 2
  for (int64_t row = thread / lanes; row < rows; row += groups) map(row * channels + channel, c);
}

/// A block for a channel of planes of pixels.
template <class Of, class Finish, class Map, int kCount>
__global__ __launch_bounds__(kWholeThreads, 1) void whole_planes_cuda(
    ORTM_GRID_CONSTANT(Of) of, ORTM_GRID_CONSTANT(Finish) finish, ORTM_GRID_CONSTANT(Map) map,
    uint32_t total, int64_t channels, int64_t pixels, FastDivisor vectors) {
  using C = typename Of::C;
  ORTM_DYNAMIC_SHARED(Moments<C>, scratch);
  const int64_t channel = blockIdx.x;
  const auto at = [&](uint32_t i) {
    const uint32_t image = vectors.quotient(i), vector = i - image * vectors.divisor;
    return (int64_t{image} * channels + channel) * pixels + int64_t{vector} * kCount;
  };
  typename Of::template Sums<kCount, 1> sums;
  const typename Of::Center center[1] = {of.center(channel)};
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < total; i += kWholeThreads) sums.add(of, at(i), center);
  const Moments<C> result = block_reduce(sums.result(0), typename Of::Combine(), scratch);
  C* const coefficients = reinterpret_cast<C*>(scratch);
  if (threadIdx.x == 0)
    finish(channel, static_cast<double>(result.mean), static_cast<double>(result.squares),
           coefficients, 1);
  __syncthreads();
  if (!map) return;
  C c[Map::kUsed][kCount];
#pragma unroll
  for (int n = 0; n < Map::kUsed; ++n)
#pragma unroll
    for (int k = 0; k < kCount; ++k) c[n][k] = coefficients[n];
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < total; i += kWholeThreads) map(at(i), c);
}

template <class Map, int kCount, class Of, class Finish>
void launch_whole(const KernelArgs& args, const Of& of, const Finish& finish, const Map& map,
                  const ChannelShape& s) {
  using C = typename Of::C;
  constexpr size_t kWarps = kWholeThreads / kWarp;
  if (s.rows) {
    constexpr int lanes =
        static_cast<int>(kSectorBytes / (kCount * static_cast<int64_t>(sizeof(*map.x))));
    constexpr size_t kWidth = size_t{lanes} * kCount;
    constexpr size_t kScratch =
        kWidth * (kWarps * sizeof(Moments<C>) + kMostCoefficients * sizeof(C));
    static_assert(kScratch <= kSharedBytes);
    ORTM_LAUNCH((whole_rows_cuda<Of, Finish, Map, kCount>),
                grid_of(blocks_for(s.channels, int64_t{kWidth})), kWholeThreads, kScratch,
                args.context, of, finish, map, s.images, s.channels, lanes);
  } else {
    constexpr size_t kScratch =
        std::max(kWarps * sizeof(Moments<C>), kMostCoefficients * sizeof(C));
    ORTM_LAUNCH((whole_planes_cuda<Of, Finish, Map, kCount>), grid_of(s.channels), kWholeThreads,
                kScratch, args.context, of, finish, map, static_cast<uint32_t>(s.count() / kCount),
                s.channels, s.pixels, FastDivisor(static_cast<uint32_t>(s.pixels / kCount)));
  }
}

}  // namespace ortmodule::cuda
