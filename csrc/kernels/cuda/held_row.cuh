// A row that a group of threads goes over several times: what a thread saw in the first pass stays
// in its registers as far as they reach, so that most rows are read from memory once.
#pragma once

#include "kernels/cuda/half_conversion.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector_access.cuh"

namespace ortmodule::cuda {

/// One thread's part of a row of `count` items: steps of kStep items at lane, lane + lanes, ...,
/// each with kValues values (several per item if several tensors are read). `count` is a multiple
/// of kStep. The first kHeld steps are kept; later ones are loaded again in every pass.
template <class C, int kStep, int kValues, int kHeld>
class HeldRow {
 public:
  using Values = C[kValues];

  __device__ HeldRow(int64_t count, int lane, int lanes)
      : count_(count), begin_(int64_t{lane} * kStep), stride_(int64_t{lanes} * kStep) {}

  /// load(i, values), then body(i, values), for every step i of the thread; values can be changed.
  template <class Load, class Body>
  __device__ __forceinline__ void first(const Load& load, const Body& body) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int64_t i = begin_ + k * stride_;
      if (i < count_) load(i, held_[k]);
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int64_t i = begin_ + k * stride_;
      if (i < count_) body(i, held_[k]);
    }
    beyond(load, body);
  }
  /// The same with the values kept from the last pass; load() is for the others only, from memory
  /// in which the passes before have left them.
  template <class Load, class Body>
  __device__ __forceinline__ void again(const Load& load, const Body& body) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int64_t i = begin_ + k * stride_;
      if (i < count_) body(i, held_[k]);
    }
    beyond(load, body);
  }
  /// Whether the values at i are loaded in every pass.
  __device__ __forceinline__ bool is_beyond(int64_t i) const {
    return i >= begin_ + kHeld * stride_;
  }

 private:
  template <class Load, class Body>
  __device__ __forceinline__ void beyond(const Load& load, const Body& body) {
#pragma unroll 1
    for (int64_t i = begin_ + kHeld * stride_; i < count_; i += stride_) {
      Values values;
      load(i, values);
      body(i, values);
    }
  }

  Values held_[kHeld];
  int64_t count_, begin_, stride_;
};

/// A row that registers hold as it was loaded: `count` elements of T, whole vectors, of which a
/// thread has those at lane, lane + lanes, ... Slots behind the row hold `rest`, so that only
/// loads and stores ask whether an element exists.
template <class T, int kSlots>
class VectorsOfRow {
 public:
  static constexpr int kCount = kVectorCount<T>;

  __device__ VectorsOfRow(int count, int lane, int lanes)
      : count_(count), begin_(lane * kCount), stride_(lanes * kCount) {}

  /// What a thread has of `from`, all loads at once.
  __device__ __forceinline__ void load(Words<T, kCount> (&to)[kSlots], const T* from,
                                       T rest) const {
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      const int i = begin_ + k * stride_;
      to[k] = i < count_ ? Words<T, kCount>::load(from + i) : Words<T, kCount>::filled(rest);
    }
  }
  /// body(slot) for the slots of which some thread of the row has elements.
  template <class Body>
  __device__ __forceinline__ void each_slot(int count, const Body& body) const {
#pragma unroll
    for (int k = 0; k < kSlots; ++k)
      if (k * stride_ < count) body(k);
  }
  __device__ __forceinline__ void store(T* to, int slot,
                                        const ComputeOf<T> (&values)[kCount]) const {
    const int i = begin_ + slot * stride_;
    const Words<T, kCount> elements = narrow<T>(values);
    if (i < count_) elements.store(to + i);
  }

 private:
  int count_, begin_, stride_;
};

/// The thread's row and lane in a launch of RowGroups. Threads without a row take part in
/// reductions with a row of no items.
struct RowOfThread {
  int64_t row;
  int lane;
  bool exists;
  __device__ RowOfThread(int lanes, int64_t rows)
      : row(int64_t{blockIdx.x} * (static_cast<int>(blockDim.x) / lanes) +
            static_cast<int>(threadIdx.x) / lanes),
        lane(static_cast<int>(threadIdx.x) % lanes),
        exists(row < rows) {
    if (!exists) row = 0;
  }
};

}  // namespace ortmodule::cuda
