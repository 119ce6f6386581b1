// GatherGrad as in cpu/gather.cpp: every row of ddata is the sum of the rows of dy with its index.
// Method: positions are sorted by index (stable_sort.cuh: 3 launches per 4 bits of the number of
// rows, 12 for 50000 rows), a binary search finds each row's positions, and each row of ddata has
// one owner, which adds up and writes it once: a group of threads, or the whole block if it has
// more than kShort positions, in parts that are added in order. No atomics, so every run gives the
// same bits; rows of up to kShort positions are added up in the order of positions, as on the CPU.
// Bytes moved: dy and ddata once, 16 per position and digit for the sort.
#include "kernels/axis.h"
#include "kernels/cuda/fast_divisor.h"
#include "kernels/cuda/index_source.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/stable_sort.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/dtype_dispatch.h"
#include "kernels/indices.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kShort = 32;

// Positions of padding get a key of their own, behind all rows.
__global__ __launch_bounds__(kThreads) void index_keys_cuda(ORTM_GRID_CONSTANT(IndexSource) indices,
                                                            uint32_t count, int64_t padding,
                                                            uint32_t* keys) {
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= count) return;
  const int64_t index = indices.at(at);
  keys[at] = static_cast<uint32_t>(index == padding ? indices.size : index);
}

// starts[a] = the number of keys below a.
__global__ __launch_bounds__(kThreads) void row_starts_cuda(const uint32_t* keys, uint32_t count,
                                                            uint32_t size, uint32_t* starts) {
  const uint32_t a = blockIdx.x * kThreads + threadIdx.x;
  if (a > size) return;
  uint32_t low = 0, high = count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (keys[middle] < a)
      low = middle + 1;
    else
      high = middle;
  }
  starts[a] = low;
}

template <class T>
using SumOf = std::conditional_t<std::is_floating_point_v<ComputeOf<T>>, ComputeOf<T>, int64_t>;

template <class T>
struct RowSums {
  const T *dy, *sum;  // sum may be null
  T* out;
  const uint32_t *starts, *positions;
  int64_t rows, count, inner;  // rows: of all outer parts together, at most 2^31
  FastDivisor size;            // rows of an outer part
};

/// sums = the rows of dy at positions [begin, end), columns from `dy` on.
template <class T, int kCount>
__device__ __forceinline__ void add_positions(const RowSums<T>& r, const T* dy, uint32_t begin,
                                              uint32_t end, SumOf<T> (&sums)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) sums[k] = 0;
#pragma unroll 4
  for (uint32_t i = begin; i < end; ++i) {
    T elements[kCount];
    load_vector(elements, dy + int64_t{r.positions[i]} * r.inner);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const SumOf<T> value = static_cast<SumOf<T>>(computed(elements[k]));
      sums[k] = i == begin ? value : sums[k] + value;  // keeps the sign of a lone zero
    }
  }
}

/// The sum is rounded before it is added to r.sum, as if that were done afterwards.
template <class T, int kCount>
__device__ __forceinline__ void write_sums(const RowSums<T>& r, int64_t at,
                                           const SumOf<T> (&sums)[kCount]) {
  T out[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) out[k] = stored<T>(sums[k]);
  if (r.sum) {
    T before[kCount];
    load_vector(before, r.sum + at);
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      out[k] = stored<T>(static_cast<SumOf<T>>(computed(before[k])) +
                         static_cast<SumOf<T>>(computed(out[k])));
  }
  store_vector(r.out + at, out);
}

// A block: blockDim.y rows of ddata, blockDim.x groups of kCount columns at a time.
template <class T, int kCount>
__global__ __launch_bounds__(kThreads) void row_sums_cuda(ORTM_GRID_CONSTANT(RowSums<T>) r) {
  using S = SumOf<T>;
  ORTM_DYNAMIC_SHARED(S, scratch);  // [blockDim.y, kCount, blockDim.x]
  const int width = static_cast<int>(blockDim.x), height = static_cast<int>(blockDim.y);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t first_row = int64_t{blockIdx.x} * height;
  const int64_t tile = int64_t{width} * kCount;
  const int64_t own_row = first_row + y;
  if (own_row < r.rows) {
    const uint32_t outer = r.size.quotient(static_cast<uint32_t>(own_row));
    const uint32_t a = static_cast<uint32_t>(own_row) - outer * r.size.divisor;
    const uint32_t begin = r.starts[a], end = r.starts[a + 1];
    const bool untouched = begin == end && r.sum == r.out;
    if (end - begin <= kShort && !untouched)
      for (int64_t column = blockIdx.y * tile + x * kCount; column < r.inner;
           column += gridDim.y * tile) {
        S sums[kCount];
        add_positions(r, r.dy + int64_t{outer} * r.count * r.inner + column, begin, end, sums);
        write_sums(r, own_row * r.inner + column, sums);
      }
  }
  for (int row_in_block = 0; row_in_block < height; ++row_in_block) {
    const int64_t row = first_row + row_in_block;
    if (row >= r.rows) break;
    const uint32_t outer = r.size.quotient(static_cast<uint32_t>(row));
    const uint32_t a = static_cast<uint32_t>(row) - outer * r.size.divisor;
    const uint32_t begin = r.starts[a], end = r.starts[a + 1];
    if (end - begin <= kShort) continue;  // the same for all threads of the block
    const uint32_t part =
        (end - begin + static_cast<uint32_t>(height) - 1) / static_cast<uint32_t>(height);
    const uint32_t part_begin = begin + static_cast<uint32_t>(y) * part;
    const uint32_t part_end = part_begin + part < end ? part_begin + part : end;
    for (int64_t at = blockIdx.y * tile; at < r.inner; at += gridDim.y * tile) {
      const int64_t column = at + x * kCount;
      S sums[kCount] = {};
      if (column < r.inner) {
        add_positions(r, r.dy + int64_t{outer} * r.count * r.inner + column, part_begin, part_end,
                      sums);
#pragma unroll
        for (int k = 0; k < kCount; ++k) scratch[(y * kCount + k) * width + x] = sums[k];
      }
      __syncthreads();
      if (y == 0 && column < r.inner) {
        for (int other = 1; other < height; ++other)
#pragma unroll
          for (int k = 0; k < kCount; ++k) sums[k] += scratch[(other * kCount + k) * width + x];
        write_sums(r, row * r.inner + column, sums);
      }
      __syncthreads();
    }
  }
}

AxisSplit grad_split(const StepFacts& facts) {
  return split_at(facts.outputs[0].layout.sizes, facts.node().attrs.integer("axis", 0));
}

size_t grad_workspace(const StepFacts& facts) {
  return sort_bytes(element_count(facts.inputs[1].layout.sizes)) +
         static_cast<size_t>(grad_split(facts).axis + 1) * sizeof(uint32_t);
}

template <class T, int kCount>
void launch_part_of_row_sums(const KernelArgs& args, const RowSums<T>& r) {
  int width = 1;
  while (width < kWarp && int64_t{width} * kCount < r.inner) width *= 2;
  const int height = kThreads / width;
  const int64_t blocks = blocks_for(r.rows, height);
  const int64_t tiles = blocks_for(r.inner, int64_t{width} * kCount);
  // Few rows: a tile per block; many: some tiles each.
  const int64_t columns = std::min(blocks < 1024 ? tiles : blocks_for(tiles, 4), kMostBlocksYZ);
  ORTM_LAUNCH((row_sums_cuda<T, kCount>), grid_of(blocks, columns),
              dim3(static_cast<unsigned>(width), static_cast<unsigned>(height)),
              sizeof(SumOf<T>) * kThreads * kCount, args.context, r);
}

/// Whole outer parts at a time, as many as have 32-bit numbers of rows.
template <class T, int kCount>
void launch_row_sums(const KernelArgs& args, const RowSums<T>& all) {
  const int64_t size = all.size.divisor;
  const int64_t most_rows = std::max(kLaunchElements / size, int64_t{1}) * size;
  for (int64_t first = 0; first < all.rows; first += most_rows) {
    RowSums<T> part = all;
    part.rows = std::min(most_rows, all.rows - first);
    part.dy += first / size * all.count * all.inner;
    part.out += first * all.inner;
    if (part.sum) part.sum += first * all.inner;
    launch_part_of_row_sums<T, kCount>(args, part);
  }
}

void run_gather_grad(const KernelArgs& args) {
  const AxisSplit split = grad_split(args.facts);
  if (split.outer * split.inner * split.axis == 0) return;
  const int64_t count = args.in[1].element_count();
  const auto number = [](int64_t x) { return static_cast<uint32_t>(x); };
  int key_bits = 1;
  while (split.axis >> key_bits) ++key_bits;
  uint32_t* starts =
      reinterpret_cast<uint32_t*>(static_cast<std::byte*>(args.workspace) + sort_bytes(count));
  ORTM_LAUNCH(index_keys_cuda, grid_of(blocks_for(count, kThreads)), kThreads, 0, args.context,
              IndexSource(args, split.axis, "GatherGrad"), number(count),
              args.facts.node().attrs.integer("padding_idx", -1), keys_to_sort(args.workspace));
  const SortedPositions sorted = sort_positions(args.workspace, count, key_bits, args.context);
  ORTM_LAUNCH(row_starts_cuda, grid_of(blocks_for(split.axis + 1, kThreads)), kThreads, 0,
              args.context, sorted.keys, number(count), number(split.axis), starts);
  dispatch_real(args.in[0].dtype, [&]<class T> {
    const RowSums<T> r{args.in[0].as<T>(),
                       args.in.size() > 2 ? args.in[2].as<T>() : nullptr,
                       args.out[0].as<T>(),
                       starts,
                       sorted.positions,
                       split.outer * split.axis,
                       count,
                       split.inner,
                       FastDivisor(number(split.axis))};
    if constexpr (!std::is_integral_v<T>) {  // integers are rare: one kernel is enough
      constexpr int kCount = kVectorCount<T>;
      if (r.inner % kCount == 0 && is_aligned<T, kCount>(r.dy) && is_aligned<T, kCount>(r.sum) &&
          is_aligned<T, kCount>(r.out))
        return launch_row_sums<T, kCount>(args, r);
    }
    launch_row_sums<T, 1>(args, r);
  });
}

Reason grad_unsupported(const StepFacts& facts) {
  constexpr int64_t kMost = int64_t{1} << 31;
  if (element_count(facts.inputs.at(1).layout.sizes) >= kMost || grad_split(facts).axis >= kMost)
    return "it takes fewer than 2^31 indices and rows";
  return indices_unsupported(facts);
}

REGISTER_KERNEL({.op = "GatherGrad",
                 .name = "gather_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats | kIntegers,
                 .run = run_gather_grad,
                 .unsupported = grad_unsupported,
                 .workspace_bytes = grad_workspace,
                 .inplace = true,
                 .inplace_operand = 2});

}  // namespace
}  // namespace ortmodule::cuda
