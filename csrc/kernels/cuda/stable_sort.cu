// Radix sort from the lowest digit of four bits (N. Satish, M. Harris, M. Garland, "Designing
// efficient sorting algorithms for manycore GPUs", 2009). Per digit: tiles count their digits, one
// block adds up the counts of all tiles, tiles put their items in place. Within a tile every thread
// has consecutive items and counters of its own, and the counters are added up in the order of
// digits, then threads: that is the stable rank. Cost: 3 launches and 16 bytes moved per item and
// digit.
#include "kernels/cuda/stable_sort.cuh"

namespace ortmodule::cuda {
namespace {

constexpr int kDigitBits = 4, kDigits = 1 << kDigitBits;
constexpr int kThreads = 256;
constexpr int kItems = 4;  // of a thread
constexpr int kTile = kThreads * kItems;
constexpr size_t kSharedCounters = kDigits * kThreads + kThreads / kWarp;

int64_t tiles_of(int64_t count) { return blocks_for(count, kTile); }

/// Exclusive prefix sum over the block's threads; `total` of all. `scratch`: one number per warp.
__device__ __forceinline__ uint32_t block_prefix(uint32_t value, uint32_t* scratch,
                                                 uint32_t& total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  uint32_t inclusive = value;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const uint32_t before = __shfl_up_sync(kWholeWarp, inclusive, offset);
    if (lane >= offset) inclusive += before;
  }
  if (lane == kWarp - 1) scratch[warp] = inclusive;
  __syncthreads();
  uint32_t base = 0;
  total = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) base += scratch[w];
    total += scratch[w];
  }
  __syncthreads();
  return base + inclusive - value;
}

/// counters[digit * kThreads + thread] = items of the tile with a lower digit, or with this one in
/// an earlier thread.
__device__ __forceinline__ void count_digits(const uint32_t (&digits)[kItems], int items,
                                             uint32_t* counters) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int d = 0; d < kDigits; ++d) counters[d * kThreads + thread] = 0;
#pragma unroll
  for (int k = 0; k < kItems; ++k)
    if (k < items) ++counters[static_cast<int>(digits[k]) * kThreads + thread];
  __syncthreads();
  uint32_t* own = counters + thread * kDigits;  // kDigits neighbours, in order
  uint32_t sum = 0, total;
#pragma unroll
  for (int k = 0; k < kDigits; ++k) sum += own[k];
  uint32_t prefix = block_prefix(sum, counters + kDigits * kThreads, total);
#pragma unroll
  for (int k = 0; k < kDigits; ++k) {
    const uint32_t value = own[k];
    own[k] = prefix;
    prefix += value;
  }
  __syncthreads();
}

struct Pass {
  const uint32_t *keys, *positions;  // positions null: each item's own
  uint32_t *to_keys, *to_positions;
  uint32_t* starts;  // [kDigits, tiles]
  uint32_t count, tiles;
  int shift;

  /// The thread's items; returns how many it has.
  __device__ __forceinline__ int load(uint32_t (&key)[kItems], uint32_t (&digit)[kItems]) const {
    const uint32_t first = blockIdx.x * kTile + threadIdx.x * kItems;
    int items = 0;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const uint32_t at = first + static_cast<uint32_t>(k);
      key[k] = at < count ? keys[at] : 0;
      digit[k] = key[k] >> shift & (kDigits - 1);
      items += at < count;
    }
    return items;
  }
};

__global__ __launch_bounds__(kThreads) void digit_counts_cuda(ORTM_GRID_CONSTANT(Pass) pass) {
  ORTM_DYNAMIC_SHARED(uint32_t, counters);
  uint32_t keys[kItems], digits[kItems];
  const int items = pass.load(keys, digits);
  count_digits(digits, items, counters);
  const int d = static_cast<int>(threadIdx.x);
  if (d >= kDigits) return;
  const uint32_t left = pass.count - blockIdx.x * kTile;
  const uint32_t in_tile = left < kTile ? left : kTile;
  const uint32_t end = d + 1 < kDigits ? counters[(d + 1) * kThreads] : in_tile;
  pass.starts[static_cast<uint32_t>(d) * pass.tiles + blockIdx.x] = end - counters[d * kThreads];
}

// One block: counts become the places of the first items.
__global__ __launch_bounds__(kThreads) void digit_starts_cuda(uint32_t* starts, uint32_t count) {
  ORTM_DYNAMIC_SHARED(uint32_t, scratch);
  uint32_t base = 0;
  for (uint32_t begin = 0; begin < count; begin += kThreads) {
    const uint32_t at = begin + threadIdx.x;
    uint32_t total;
    const uint32_t prefix = block_prefix(at < count ? starts[at] : 0, scratch, total);
    if (at < count) starts[at] = base + prefix;
    base += total;
  }
}

__global__ __launch_bounds__(kThreads) void move_items_cuda(ORTM_GRID_CONSTANT(Pass) pass) {
  ORTM_DYNAMIC_SHARED(uint32_t, counters);
  uint32_t keys[kItems], digits[kItems];
  const int items = pass.load(keys, digits);
  count_digits(digits, items, counters);
  const uint32_t first = blockIdx.x * kTile + threadIdx.x * kItems;
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    if (k >= items) break;
    const int row = static_cast<int>(digits[k]) * kThreads;
    uint32_t rank = counters[row + static_cast<int>(threadIdx.x)] - counters[row];
#pragma unroll
    for (int before = 0; before < k; ++before) rank += digits[before] == digits[k];
    const uint32_t to = pass.starts[digits[k] * pass.tiles + blockIdx.x] + rank;
    const uint32_t from = first + static_cast<uint32_t>(k);
    pass.to_keys[to] = keys[k];
    pass.to_positions[to] = pass.positions ? pass.positions[from] : from;
  }
}

}  // namespace

size_t sort_bytes(int64_t count) {
  const int64_t numbers = 4 * count + kDigits * tiles_of(count);
  return static_cast<size_t>(numbers + numbers % 2) * sizeof(uint32_t);
}

uint32_t* keys_to_sort(void* scratch) { return static_cast<uint32_t*>(scratch); }

SortedPositions sort_positions(void* scratch, int64_t count, int key_bits,
                               const KernelContext& context) {
  uint32_t* const memory = static_cast<uint32_t*>(scratch);
  uint32_t *keys = memory, *other_keys = memory + count;
  uint32_t *positions = memory + 2 * count, *other_positions = memory + 3 * count;
  Pass pass;
  pass.starts = memory + 4 * count;
  pass.count = static_cast<uint32_t>(count);
  pass.tiles = static_cast<uint32_t>(tiles_of(count));
  const dim3 grid = grid_of(tiles_of(count));
  for (pass.shift = 0; pass.shift < key_bits || pass.shift == 0; pass.shift += kDigitBits) {
    pass.keys = keys;
    pass.positions = pass.shift ? positions : nullptr;
    pass.to_keys = other_keys;
    pass.to_positions = other_positions;
    ORTM_LAUNCH(digit_counts_cuda, grid, kThreads, kSharedCounters * sizeof(uint32_t), context,
                pass);
    ORTM_LAUNCH(digit_starts_cuda, grid.x ? 1 : 0, kThreads, sizeof(uint32_t) * (kThreads / kWarp),
                context, pass.starts, kDigits * pass.tiles);
    ORTM_LAUNCH(move_items_cuda, grid, kThreads, kSharedCounters * sizeof(uint32_t), context, pass);
    std::swap(keys, other_keys);
    std::swap(positions, other_positions);
  }
  return {keys, positions};
}

}  // namespace ortmodule::cuda
