// Reductions over a warp and over a block, in an order that is fixed by the shape of the block: no
// atomics, so that every run gives the same bits.
#pragma once

#include <cstring>
#include <type_traits>

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

/// Additions of a thread between two carries to the partial result.
inline constexpr int kRun = 16;

/// A thread's result: kRun additions in C at most, then one in Partial.
template <class Op>
class Accumulator {
 public:
  __device__ __forceinline__ void add(typename Op::C x) { recent_ = Op::add(recent_, x); }
  /// After `count` additions, a divisor of kRun.
  __device__ __forceinline__ void tick(int count) {
    count_ += count;
    if (count_ == kRun) carry();
  }
  /// Ends a run, for who counts the additions of several accumulators at once.
  __device__ __forceinline__ void carry() {
    total_ = Op::combine(total_, static_cast<typename Op::Partial>(recent_));
    recent_ = static_cast<typename Op::C>(Op::start());
    count_ = 0;
  }
  __device__ __forceinline__ typename Op::Partial result() {
    carry();
    return total_;
  }

 private:
  typename Op::C recent_ = static_cast<typename Op::C>(Op::start());
  typename Op::Partial total_ = Op::start();
  int count_ = 0;
};

/// __shfl_xor_sync for any trivially copyable type of whole 4-byte words.
template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int lane_mask) {
  if constexpr (std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8)) {
    return __shfl_xor_sync(kWholeWarp, value, lane_mask);
  } else {
    static_assert(sizeof(T) % 4 == 0);
    uint32_t words[sizeof(T) / 4];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (uint32_t& word : words) word = __shfl_xor_sync(kWholeWarp, word, lane_mask);
    memcpy(&value, words, sizeof(T));
    return value;
  }
}

/// The combination of the values of each `lanes` neighbouring lanes (a power of two up to 32), in
/// every one of them. All lanes of the warp take part. The tree is the same in every lane, so all
/// get the same bits if op is commutative.
template <class T, class Op>
__device__ __forceinline__ T warp_reduce(T value, Op op, int lanes = kWarp) {
  for (int offset = lanes / 2; offset > 0; offset /= 2)
    value = op(value, shuffle_xor(value, offset));
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

/// How many threads work on one row, and how many rows a block takes: lanes of a warp for short
/// rows, else the whole block.
struct RowGroups {
  int lanes = 1;    // threads of a row: 1, 2, ..., 32 or all of the block
  int threads = 0;  // of a block
  int rows() const { return threads / lanes; }
};

/// For rows of `count` items of which a thread should get at least `each`.
inline RowGroups row_groups(int64_t count, int each, int most_threads = 512) {
  RowGroups groups;
  while (groups.lanes < most_threads && int64_t{groups.lanes} * each < count) groups.lanes *= 2;
  groups.threads = groups.lanes > kWarp ? groups.lanes : 128;
  return groups;
}

/// block_reduce() or, for rows of up to a warp, warp_reduce().
template <class T, class Op>
__device__ __forceinline__ T row_reduce(T value, Op op, int lanes, T* scratch) {
  return lanes > kWarp ? block_reduce(value, op, scratch) : warp_reduce(value, op, lanes);
}

/// A block size for rows of `count` items: a power of two from one warp up to `most` threads.
inline int threads_for(int64_t count, int most = 256) {
  int threads = kWarp;
  while (threads < most && threads < count) threads *= 2;
  return threads;
}

}  // namespace ortmodule::cuda
