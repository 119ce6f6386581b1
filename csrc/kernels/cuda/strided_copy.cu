// Method: dimensions are ordered by the destination's strides and merged where both sides allow. If
// both sides are consecutive along the last dimension, elements are moved in the widest words that
// divide it; if the source is along another one, tiles go through shared memory, so that reads and
// writes of a warp are both consecutive; else elements are gathered. Bytes moved: each side once.
#include "kernels/cuda/fast_divisor.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/strided_copy.h"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/dtype_dispatch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;  // elements of a thread, a block apart

struct CopySpace {
  int rank = 0;
  FastDivisor sizes[kMaxRank];
  int64_t to[kMaxRank] = {}, from[kMaxRank] = {};

  __device__ __forceinline__ void find_offsets(uint32_t position, int64_t& to_at,
                                               int64_t& from_at) const {
    to_at = from_at = 0;
    for (int d = rank - 1; d > 0; --d) {
      const uint32_t rest = sizes[d].quotient(position);
      const int64_t coordinate = position - rest * sizes[d].divisor;
      to_at += coordinate * to[d];
      from_at += coordinate * from[d];
      position = rest;
    }
    if (rank == 0) return;
    to_at += position * to[0];
    from_at += position * from[0];
  }
};

/// The pairs of a launch, by blockIdx.y.
template <class T>
struct CopyPairs {
  T* to[kCopiesOfLaunch];
  const T* from[kCopiesOfLaunch];
};

template <class T>
__global__ __launch_bounds__(kThreads) void strided_copy_cuda(ORTM_GRID_CONSTANT(CopySpace) space,
                                                              ORTM_GRID_CONSTANT(CopyPairs<T>)
                                                                  pairs,
                                                              uint32_t total) {
  T* const to = pairs.to[blockIdx.y];
  const T* const from = pairs.from[blockIdx.y];
  const uint32_t first = blockIdx.x * (kThreads * kEach) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t position = first + static_cast<uint32_t>(i * kThreads);
    if (position >= total) return;
    int64_t to_at, from_at;
    space.find_offsets(position, to_at, from_at);
    to[to_at] = from[from_at];
  }
}

// A tile of kTile rows (along the source) by kTile columns (along the destination).
template <class T>
inline constexpr int kTile = sizeof(T) >= 4 ? 32 : 64;

struct Planes {
  CopySpace outer;
  FastDivisor row_tiles, column_tiles;
  int64_t rows = 0, columns = 0;        // of a plane
  int64_t to_row = 0, from_column = 0;  // strides; the other two are 1
};

template <class T>
__global__ __launch_bounds__(kThreads) void transpose_cuda(ORTM_GRID_CONSTANT(Planes) p, T* to,
                                                           const T* from) {
  constexpr int kSide = kTile<T>;
  constexpr int kStep = kThreads / kSide;
  ORTM_DYNAMIC_SHARED(T, tile);  // kSide rows of kSide + 1, so that columns fall into all banks
  const uint32_t plane_tile = p.column_tiles.quotient(blockIdx.x);
  const uint32_t plane = p.row_tiles.quotient(plane_tile);
  const int64_t column0 = int64_t{blockIdx.x - plane_tile * p.column_tiles.divisor} * kSide;
  const int64_t row0 = int64_t{plane_tile - plane * p.row_tiles.divisor} * kSide;
  int64_t to_at, from_at;
  p.outer.find_offsets(plane, to_at, from_at);
  const int lane = static_cast<int>(threadIdx.x) % kSide;
  const int line = static_cast<int>(threadIdx.x) / kSide;
  for (int c = line; c < kSide; c += kStep)
    if (row0 + lane < p.rows && column0 + c < p.columns)
      tile[c * (kSide + 1) + lane] = from[from_at + (column0 + c) * p.from_column + row0 + lane];
  __syncthreads();
  for (int r = line; r < kSide; r += kStep)
    if (row0 + r < p.rows && column0 + lane < p.columns)
      to[to_at + (row0 + r) * p.to_row + column0 + lane] = tile[lane * (kSide + 1) + r];
}

CopySpace copy_space(const IterationSpace& space, const Coords& sizes) {
  CopySpace s;
  for (int d = 0; d < space.rank; ++d) {
    s.sizes[d] = FastDivisor(static_cast<uint32_t>(sizes[d]));
    s.to[d] = space.strides[0][d];
    s.from[d] = space.strides[1][d];
  }
  s.rank = space.rank;
  return s;
}

template <class T>
void run_transpose(const StridedCopy& copy, T* to, const T* from, const KernelContext& context) {
  const IterationSpace& space = copy.space;
  const int last = space.rank - 1;
  IterationSpace outer;
  outer.strides.assign(2, Coords{});
  for (int d = 0; d < last; ++d) {
    if (d == copy.source_dim) continue;
    outer.sizes[outer.rank] = space.sizes[d];
    for (size_t i = 0; i < 2; ++i) outer.strides[i][outer.rank] = space.strides[i][d];
    ++outer.rank;
  }
  Planes p;
  p.outer = copy_space(outer, outer.sizes);
  p.rows = space.sizes[copy.source_dim];
  p.columns = space.sizes[last];
  p.to_row = space.strides[0][copy.source_dim];
  p.from_column = space.strides[1][last];
  const int64_t row_tiles = blocks_for(p.rows, kTile<T>),
                column_tiles = blocks_for(p.columns, kTile<T>);
  p.row_tiles = FastDivisor(static_cast<uint32_t>(row_tiles));
  p.column_tiles = FastDivisor(static_cast<uint32_t>(column_tiles));
  const size_t bytes = sizeof(T) * kTile<T> * (kTile<T> + 1);
  ORTM_LAUNCH(transpose_cuda<T>, grid_of(outer.count() * row_tiles * column_tiles), kThreads, bytes,
              context, p, to, from);
}

template <class T>
void run_general(const IterationSpace& space, std::span<const CopyAddresses> at,
                 const KernelContext& context) {
  for_each_part(
      space, [&](const Coords& sizes, const std::vector<int64_t>& offsets, int64_t total) {
        CopyPairs<T> pairs{};
        for (size_t i = 0; i < at.size(); ++i) {
          pairs.to[i] = static_cast<T*>(at[i].to) + offsets[0];
          pairs.from[i] = static_cast<const T*>(at[i].from) + offsets[1];
        }
        ORTM_LAUNCH(strided_copy_cuda<T>,
                    grid_of(blocks_for(total, kThreads * kEach), static_cast<int64_t>(at.size())),
                    kThreads, 0, context, copy_space(space, sizes), pairs,
                    static_cast<uint32_t>(total));
      });
}

// The widest word in which runs along the last dimension can be moved, and the space in words.
int64_t widen(IterationSpace& space, int64_t element_bytes, std::span<const CopyAddresses> at) {
  const int last = space.rank - 1;
  if (space.strides[0][last] != 1 || space.strides[1][last] != 1) return element_bytes;
  int64_t bytes = element_bytes;
  uintptr_t addresses = 0;
  for (const CopyAddresses& a : at)
    addresses |= reinterpret_cast<uintptr_t>(a.to) | reinterpret_cast<uintptr_t>(a.from);
  const auto fits = [&](int64_t wider) {
    const int64_t factor = wider / element_bytes;
    bool all = space.sizes[last] % factor == 0 && addresses % static_cast<uintptr_t>(wider) == 0;
    for (const Coords& strides : space.strides)
      for (int d = 0; d < last; ++d) all = all && strides[d] % factor == 0;
    return all;
  };
  while (bytes < static_cast<int64_t>(kVectorBytes) && fits(bytes * 2)) bytes *= 2;
  const int64_t factor = bytes / element_bytes;
  space.sizes[last] /= factor;
  for (Coords& strides : space.strides)
    for (int d = 0; d < last; ++d) strides[d] /= factor;
  return bytes;
}

// --- filling -------------------------------------------------------------------------------------
template <class T>
__global__ __launch_bounds__(kThreads) void fill_cuda(T* to, T value, int64_t count, bool vectors) {
  constexpr int kCount = kVectorCount<T>;
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (first >= count) return;
  T elements[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) elements[i] = value;
  const int64_t left = count - first;
  store_some(to + first, elements, left < kCount ? static_cast<int>(left) : kCount, vectors);
}

template <class T>
void fill_bits(void* to, T bits, int64_t count, const KernelContext& context) {
  ORTM_LAUNCH(fill_cuda<T>, grid_of(blocks_for(count, kThreads * kVectorCount<T>)), kThreads, 0,
              context, static_cast<T*>(to), bits, count, (is_aligned<T, kVectorCount<T>>(to)));
}

}  // namespace

StridedCopy make_copy(const Sizes& sizes, const Sizes& to, const Sizes& from,
                      size_t element_bytes) {
  StridedCopy copy;
  copy.space = iteration_space(sizes, {to, from});
  copy.element_bytes = static_cast<int64_t>(element_bytes);
  copy.total = element_count(sizes);
  copy.linear = copy.space.is_linear(0) && copy.space.is_linear(1);
  const int last = copy.space.rank - 1;
  if (copy.space.strides[0][last] != 1 || copy.space.strides[1][last] <= 1) return copy;
  for (int d = 0; d < last; ++d)
    // Shorter rows would leave most of a tile empty.
    if (copy.space.strides[1][d] == 1 && copy.space.sizes[d] >= 8) copy.source_dim = d;
  return copy;
}

void run_copy(const StridedCopy& copy, void* to, const void* from, const KernelContext& context) {
  const CopyAddresses at{to, from};
  run_copies(copy, {&at, 1}, context);
}

void run_copies(const StridedCopy& copy, std::span<const CopyAddresses> at,
                const KernelContext& context) {
  if (copy.total == 0) return;
  if (copy.linear && at.size() == 1) {
    check_launch(
        "strided_copy",
        cudaMemcpyAsync(at[0].to, at[0].from, static_cast<size_t>(copy.total * copy.element_bytes),
                        cudaMemcpyDeviceToDevice, stream_of(context)));
    return;
  }
  if (copy.source_dim >= 0 && copy.element_bytes <= 8) {
    for (const CopyAddresses& a : at)
      dispatch_width(static_cast<size_t>(copy.element_bytes), [&]<class T> {
        if constexpr (sizeof(T) <= 8)
          run_transpose(copy, static_cast<T*>(a.to), static_cast<const T*>(a.from), context);
      });
    return;
  }
  for (size_t first = 0; first < at.size(); first += kCopiesOfLaunch) {
    const auto together = at.subspan(first, std::min(kCopiesOfLaunch, at.size() - first));
    IterationSpace space = copy.space;
    const int64_t bytes = widen(space, copy.element_bytes, together);
    dispatch_width(static_cast<size_t>(bytes),
                   [&]<class T> { run_general<T>(space, together, context); });
  }
}

void fill(const TensorView& view, double value, const KernelContext& context) {
  const int64_t count = view.element_count();
  if (is_complex(view.dtype))
    return fill_bits(view.data, uint64_t{0}, count * static_cast<int64_t>(size_of(view.dtype) / 8),
                     context);
  dispatch_real(view.dtype, [&]<class T> {
    T element;
    if constexpr (std::is_same_v<T, bool>) {
      element = value != 0;
    } else if constexpr (std::is_integral_v<T>) {
      element = static_cast<T>(static_cast<int64_t>(value));
    } else {
      element = stored<T>(value);
    }
    fill_bits(view.data, element, count, context);
  });
}

}  // namespace ortmodule::cuda
