// Stands in for CUDA's header of the same name where the kernels of csrc/kernels/cuda are compiled
// by the C++ compiler to run on the CPU (emulation.h): the part of CUDA C++ that they use. What is
// missing here is a compile error there: add it with its checks.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulation.h"

#ifndef ORTM_CUDA_EMULATION
#error "this directory is for builds with -DORTM_CUDA_EMULATION"
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
// One block runs at a time, so a static variable is as good as a block's own. It keeps what the
// block before left, where a GPU would have anything.
#define __shared__ static

#define threadIdx (::ortmodule::cuda::emulation::position().thread)
#define blockIdx (::ortmodule::cuda::emulation::position().block)
#define blockDim (::ortmodule::cuda::emulation::position().block_dim)
#define gridDim (::ortmodule::cuda::emulation::position().grid_dim)
inline constexpr int warpSize = ::ortmodule::cuda::emulation::kWarpSize;

using dim3 = ::ortmodule::cuda::emulation::Dim3;
using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0 };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }

enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3 };
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

inline void __syncthreads() { ::ortmodule::cuda::emulation::block_barrier(); }
inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  const uint64_t nothing = 0;
  ::ortmodule::cuda::emulation::warp_exchange("__syncwarp", mask, nothing);
}

namespace ortmodule::cuda::emulation {

/// Every lane of `mask` gives `value` and receives that of lane `from`. An inactive source lane has
/// an undefined value on a GPU, so it is an error here.
template <class T>
T shuffle(const char* what, uint32_t mask, T value, int from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "what shuffles take");
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  const std::array<uint64_t, kWarpSize>& lanes = warp_exchange(what, mask, word);
  require_lane(what, mask, from);
  T received;
  std::memcpy(&received, &lanes[static_cast<size_t>(from)], sizeof(T));
  return received;
}

}  // namespace ortmodule::cuda::emulation

template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int lane_mask) {
  return ::ortmodule::cuda::emulation::shuffle("__shfl_xor_sync", mask, value,
                                               ::ortmodule::cuda::emulation::lane() ^ lane_mask);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, int delta) {
  const int lane = ::ortmodule::cuda::emulation::lane();
  return ::ortmodule::cuda::emulation::shuffle("__shfl_down_sync", mask, value,
                                               lane + delta < warpSize ? lane + delta : lane);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, int delta) {
  const int lane = ::ortmodule::cuda::emulation::lane();
  return ::ortmodule::cuda::emulation::shuffle("__shfl_up_sync", mask, value,
                                               lane >= delta ? lane - delta : lane);
}
template <class T>
T __shfl_sync(uint32_t mask, T value, int source) {
  return ::ortmodule::cuda::emulation::shuffle("__shfl_sync", mask, value, source % warpSize);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
  const auto& lanes =
      ::ortmodule::cuda::emulation::warp_exchange("__ballot_sync", mask, uint64_t{predicate != 0});
  uint32_t votes = 0;
  for (int i = 0; i < warpSize; ++i)
    if ((mask >> i & 1u) && lanes[static_cast<size_t>(i)]) votes |= 1u << i;
  return votes;
}
inline int __any_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(uint32_t mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
