// How every CUDA kernel is launched, on CUDA and in the tests' emulation on the CPU
// (tests/cuda_emulation), and what it may count on.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/iteration.h"
#include "kernels/kernel.h"

namespace ortmodule::cuda {

inline constexpr int kWarp = 32;
inline constexpr uint32_t kWholeWarp = 0xffffffffu;
/// Dynamic shared memory that every device gives without being asked.
inline constexpr size_t kSharedBytes = 48 * 1024;
/// Kernels with 32-bit positions are launched on at most this many elements; larger tensors are
/// cut. In the emulation so few that tests reach it.
#if defined(ORTM_CUDA_EMULATION)
inline constexpr int64_t kLaunchElements = int64_t{1} << 16;
#else
inline constexpr int64_t kLaunchElements = int64_t{1} << 30;
#endif
/// The most blocks that a grid gets in y and z.
inline constexpr int64_t kMostBlocksYZ = 65535;

inline cudaStream_t stream_of(const KernelContext& context) {
  return static_cast<cudaStream_t>(context.stream);
}

/// Throws Error naming the kernel unless its launch succeeded.
inline void check_launch(const char* kernel, cudaError_t status) {
  if (status != cudaSuccess)
    throw Error(str("[", kernel, "] the launch must succeed, but found \"",
                    cudaGetErrorString(status),
                    "\"; errors of kernels before may be reported here: run with "
                    "CUDA_LAUNCH_BLOCKING=1 to see which"));
}

inline int64_t blocks_for(int64_t items, int64_t per_block) {
  return (items + per_block - 1) / per_block;
}

/// Cuts a space into parts of at most kLaunchElements, so that positions in each are 32-bit
/// numbers: halves along the outermost dimension, as often as it takes. body(sizes, offsets,
/// total): sizes of the part and, per operand, the element at its first position. Empty spaces have
/// no part.
template <class Body>
void for_each_part(const IterationSpace& space, const Coords& sizes,
                   const std::vector<int64_t>& offsets, const Body& body) {
  int64_t total = 1;
  for (int d = 0; d < space.rank; ++d) total *= sizes[d];
  if (total == 0) return;
  if (total <= kLaunchElements) return body(sizes, offsets, total);
  int d = 0;
  while (sizes[d] == 1) ++d;
  Coords first = sizes, second = sizes;
  // A multiple of 16 keeps the second half as aligned as the first.
  first[d] = sizes[d] / 2 >= 16 ? sizes[d] / 2 / 16 * 16 : sizes[d] / 2;
  second[d] = sizes[d] - first[d];
  std::vector<int64_t> second_offsets = offsets;
  for (size_t i = 0; i < offsets.size(); ++i) second_offsets[i] += first[d] * space.strides[i][d];
  for_each_part(space, first, offsets, body);
  for_each_part(space, second, second_offsets, body);
}
template <class Body>
void for_each_part(const IterationSpace& space, const Body& body) {
  for_each_part(space, space.sizes, std::vector<int64_t>(space.strides.size(), 0), body);
}

/// Launches `kernel(args...)`, arguments converted as in a call. An empty grid is no error and does
/// nothing: tensors may be empty.
template <class... Parameters, class... Args>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  static_assert(sizeof...(Parameters) == sizeof...(Args), "one argument per parameter");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#if defined(ORTM_CUDA_EMULATION)
  (void)stream;
  emulation::launch(name, grid, block, shared_bytes, [&] { kernel(args...); });
#else
  kernel<<<grid, block, shared_bytes, stream>>>(std::forward<Args>(args)...);
  check_launch(name, cudaGetLastError());
#endif
}

inline dim3 grid_of(int64_t x, int64_t y = 1, int64_t z = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}

}  // namespace ortmodule::cuda

/// ORTM_LAUNCH((kernel<T, 4>), grid, block, shared_bytes, context, args...): parentheses where the
/// name holds a comma; context is the KernelContext, whose stream is used.
#define ORTM_LAUNCH(kernel, grid, block, shared_bytes, context, ...)    \
  ::ortmodule::cuda::launch(#kernel, kernel, grid, block, shared_bytes, \
                            ::ortmodule::cuda::stream_of(context), __VA_ARGS__)

/// Declares `T* name`, the block's dynamic shared memory, aligned to 16 bytes.
#if defined(ORTM_CUDA_EMULATION)
#define ORTM_DYNAMIC_SHARED(T, name) \
  T* const name = static_cast<T*>(::ortmodule::cuda::emulation::dynamic_shared())
#else
#define ORTM_DYNAMIC_SHARED(T, name)                                 \
  extern __shared__ __align__(16) unsigned char ortm_shared_bytes[]; \
  T* const name = reinterpret_cast<T*>(ortm_shared_bytes)
#endif

/// A large parameter of a kernel that all threads read where it is.
#if defined(ORTM_CUDA_EMULATION)
#define ORTM_GRID_CONSTANT(T) const T&
#else
#define ORTM_GRID_CONSTANT(T) const __grid_constant__ T
#endif

/// A device function that shall not be inlined. (`__noinline__` itself is no macro of ours:
/// standard headers use the name.)
#if defined(ORTM_CUDA_EMULATION)
#define ORTM_NOINLINE __attribute__((noinline))
#else
#define ORTM_NOINLINE __noinline__
#endif
