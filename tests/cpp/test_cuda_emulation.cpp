// The emulation of CUDA itself: what it must compute and what it must refuse.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/fast_divisor.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/cuda/wide_divisor.h"

namespace ortmodule::cuda {
namespace {

constexpr uint32_t kAll = 0xffffffffu;

template <class Body>
std::string error_of(dim3 grid, dim3 block, size_t shared_bytes, const Body& body) {
  try {
    emulation::launch("tested", grid, block, shared_bytes, body);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(CudaEmulation, RunsEveryThreadOnce) {
  const dim3 grid(3, 2, 2), block(5, 4, 3);
  std::vector<int> runs(3 * 2 * 2 * 60);
  emulation::launch("tested", grid, block, 0, [&] {
    const unsigned b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    ++runs[b * 60 + t];
  });
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST(CudaEmulation, SharesMemoryAcrossABarrier) {
  std::vector<int> reversed(2 * 256);
  emulation::launch("tested", 2, 256, 256 * sizeof(int), [&] {
    ORTM_DYNAMIC_SHARED(int, shared);
    for (int round = 0; round < 3; ++round) {
      shared[threadIdx.x] = static_cast<int>(threadIdx.x + round);
      __syncthreads();
      reversed[blockIdx.x * 256 + threadIdx.x] = shared[255 - threadIdx.x];
      __syncthreads();
    }
  });
  for (int i = 0; i < 512; ++i) EXPECT_EQ(reversed[static_cast<size_t>(i)], 255 - i % 256 + 2);
}

TEST(CudaEmulation, ShufflesAWarp) {
  std::vector<int> exchanged(64), shifted(64), first(64);
  std::vector<uint32_t> votes(64);
  emulation::launch("tested", 1, 64, 0, [&] {
    const int i = static_cast<int>(threadIdx.x);
    exchanged[threadIdx.x] = __shfl_xor_sync(kAll, i, 5);
    shifted[threadIdx.x] = __shfl_down_sync(kAll, i, 3);
    first[threadIdx.x] = __shfl_sync(kAll, i, 0);
    votes[threadIdx.x] = __ballot_sync(kAll, i % 2);
  });
  for (int i = 0; i < 64; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(exchanged[at], i ^ 5);
    EXPECT_EQ(shifted[at], i % 32 + 3 < 32 ? i + 3 : i);
    EXPECT_EQ(first[at], i / 32 * 32);
    EXPECT_EQ(votes[at], 0xaaaaaaaau);
  }
}

TEST(CudaEmulation, ReducesABlockInAFixedOrder) {
  for (unsigned threads : {32u, 64u, 256u, 1024u}) {
    std::vector<float> sums(threads), largest(threads), values(threads);
    for (size_t i = 0; i < threads; ++i) values[i] = 1.0f / static_cast<float>(i * 7 % threads + 1);
    emulation::launch("tested", 1, threads, 32 * sizeof(float), [&] {
      ORTM_DYNAMIC_SHARED(float, scratch);
      sums[threadIdx.x] = block_reduce(values[threadIdx.x], AddOp(), scratch);
      largest[threadIdx.x] = block_reduce(values[threadIdx.x], MaxOp(), scratch);
    });
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    EXPECT_NEAR(sums[0], sum, 1e-5);
    EXPECT_EQ(sums, std::vector<float>(threads, sums[0]));
    EXPECT_EQ(largest, std::vector<float>(threads, 1.0f));
  }
}

TEST(CudaEmulation, RefusesABarrierThatSomeThreadsMiss) {
  const std::string error = error_of(1, 64, 0, [] {
    if (threadIdx.x != 7) __syncthreads();
  });
  EXPECT_EQ(
      error,
      "[tested] every thread of a block must reach the same barrier, but of 64 threads 1 have "
      "ended and 63 wait at __syncthreads (block (0, 0, 0))");
}

TEST(CudaEmulation, RefusesAWarpThatDiverges) {
  EXPECT_NE(error_of(1, 32, 0,
                     [] {
                       if (threadIdx.x < 16) __shfl_xor_sync(kAll, 1, 1);
                     })
                .find("warp 0 waits in __shfl_xor_sync for lanes that do not come"),
            std::string::npos);
  EXPECT_NE(error_of(1, 32, 0,
                     [] {
                       if (threadIdx.x < 16) {
                         __shfl_xor_sync(kAll, 1, 1);
                       } else {
                         __shfl_down_sync(kAll, 1, 1);
                       }
                     })
                .find("must meet in one function"),
            std::string::npos);
  EXPECT_NE(error_of(1, 16, 0, [] { __syncwarp(); }).find("must name the lanes"),
            std::string::npos);
}

TEST(CudaEmulation, RefusesWhatNoGpuLaunches) {
  const auto nothing = [] {};
  EXPECT_NE(error_of(1, 2048, 0, nothing), "");
  EXPECT_NE(error_of(dim3(1, 70000), 32, 0, nothing), "");
  EXPECT_NE(error_of(1, 32, 100 * 1024, nothing), "");
  EXPECT_EQ(error_of(1, 32, 48 * 1024, nothing), "");
}

TEST(CudaEmulation, GoesOnAfterAnError) {
  EXPECT_THROW(emulation::launch("tested", 1, 32, 0,
                                 [] {
                                   __syncwarp();
                                   if (threadIdx.x == 3) throw std::runtime_error("from a kernel");
                                   __syncthreads();
                                 }),
               std::runtime_error);
  int runs = 0;
  emulation::launch("tested", 1, 32, 0, [&] {
    __syncthreads();
    ++runs;
  });
  EXPECT_EQ(runs, 32);
}

TEST(CudaEmulation, FillsSharedMemoryWithNaN) {
  emulation::launch("tested", 2, 1, sizeof(float), [&] {
    ORTM_DYNAMIC_SHARED(float, shared);
    EXPECT_NE(shared[0], shared[0]);
    shared[0] = 1;
  });
}

TEST(FastDivisor, DividesLikeTheProcessor) {
  for (uint32_t d :
       {1u, 2u, 3u, 5u, 7u, 10u, 64u, 641u, 65535u, 1000003u, 0x7fffffffu, 1u << 30, 1u << 31}) {
    const FastDivisor divisor(d);
    for (uint32_t n :
         {0u, 1u, 2u, d - 1, d, d + 1, 2 * d - 1, 123456789u, 0x7ffffffeu, 0x7fffffffu})
      EXPECT_EQ(divisor.quotient(n & 0x7fffffffu), (n & 0x7fffffffu) / d) << n << " / " << d;
  }
}

TEST(WideDivisor, DividesLikeTheProcessor) {
  constexpr uint64_t kMost = uint64_t{1} << 63;
  for (uint64_t d :
       {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{7}, uint64_t{641}, (uint64_t{1} << 31) + 11,
        uint64_t{1} << 40, uint64_t{1000000000000000003}, kMost - 1, kMost}) {
    const WideDivisor divisor(d);
    for (uint64_t n : {uint64_t{0}, uint64_t{1}, d - 1, d, d + 1, 2 * d - 1, 3 * d,
                       uint64_t{123456789012345}, kMost - 2, kMost - 1})
      EXPECT_EQ(divisor.quotient(n % kMost), n % kMost / d) << n << " / " << d;
  }
}

TEST(VectorAccess, MovesWholeVectorsOrElements) {
  alignas(16) float from[9], to[9];
  std::iota(from, from + 9, 1.0f);
  for (int shift : {0, 1}) {
    for (int count = 0; count <= 4; ++count) {
      std::fill(to, to + 9, -1.0f);
      float elements[4];
      const bool vectors = is_aligned<float, 4>(from + shift);
      EXPECT_EQ(vectors, shift == 0);
      load_some(elements, from + shift, count, vectors, 0.5f);
      store_some(to + shift, elements, count, vectors);
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(elements[i], i < count ? from[shift + i] : 0.5f);
        EXPECT_EQ(to[shift + i], i < count ? from[shift + i] : -1.0f);
      }
    }
  }
}

}  // namespace
}  // namespace ortmodule::cuda
