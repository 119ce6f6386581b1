// A stable sort of small non-negative keys on the device without atomics, so that equal keys keep
// the order of their positions and every run gives the same bits.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace ortmodule::cuda {

/// Positions 0 .. count - 1 sorted by key: uint32 arrays of `count` in device memory.
struct SortedPositions {
  const uint32_t* keys;       // ascending
  const uint32_t* positions;  // ascending among equal keys
};

/// Bytes of the scratch memory that sort_positions() needs, a multiple of 8.
size_t sort_bytes(int64_t count);

/// Where the caller writes the `count` keys before the sort.
uint32_t* keys_to_sort(void* scratch);

/// Enqueues the sort by the lowest `key_bits` bits. The results lie in `scratch`. count < 2^31.
SortedPositions sort_positions(void* scratch, int64_t count, int key_bits,
                               const KernelContext& context);

}  // namespace ortmodule::cuda
