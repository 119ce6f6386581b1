// Reductions over a warp and over a block, in an order that is fixed by the shape of the block: no
// atomics, so that every run gives the same bits.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace ortmodule::cuda {

struct AddOp {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
/// NaN wins.
struct MaxOp {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a != a ? a : a > b ? a : b;  // b if it is NaN: no comparison with it holds
  }
};
struct MinOp {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a != a ? a : a < b ? a : b;
  }
};

/// The combination of the values of all lanes, in every lane. All lanes of the warp take part; T
/// has 4 or 8 bytes. The tree is the same in every lane, so all get the same bits if op is
/// commutative.
template <class T, class Op>
__device__ __forceinline__ T warp_reduce(T value, Op op) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value = op(value, __shfl_xor_sync(kWholeWarp, value, offset));
  return value;
}

/// The combination over all threads of the block (x dimension, a multiple of 32 threads), in every
/// thread. `scratch`: shared memory of one T per warp, free again after the call.
template <class T, class Op>
__device__ __forceinline__ T block_reduce(T value, Op op, T* scratch) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  value = warp_reduce(value, op);
  if (warps == 1) return value;
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = scratch[0];
  for (int w = 1; w < warps; ++w) value = op(value, scratch[w]);
  __syncthreads();
  return value;
}

/// A block size for rows of `count` items: a power of two from one warp up to `most` threads.
inline int threads_for(int64_t count, int most = 256) {
  int threads = kWarp;
  while (threads < most && threads < count) threads *= 2;
  return threads;
}

}  // namespace ortmodule::cuda
