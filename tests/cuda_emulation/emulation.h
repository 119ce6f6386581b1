// Runs CUDA kernels on the CPU, for tests: a kernel is an ordinary function here, the threads of a
// block are fibers of one operating-system thread, and blocks run one after another. A fiber runs
// until it ends or waits, so a kernel without synchronisation costs one switch per thread.
// What a GPU leaves undefined is an Error: a barrier that some threads of a block do not reach,
// lanes of a warp that wait in different functions, a shuffle from a lane that takes no part.
// Dynamic shared memory is a heap block of exactly the size asked for, filled with NaN patterns
// before each block, so that sanitizers and results tell of stray accesses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace ortmodule::cuda::emulation {

inline constexpr int kWarpSize = 32;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr Dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/// Where the running fiber is.
struct Position {
  Dim3 thread, block, block_dim, grid_dim;
};
const Position& position();
/// Lane of the running fiber in its warp.
int lane();

/// Runs `thread` once per thread of the grid. Throws Error, naming `kernel`, for a launch that a
/// GPU would refuse and for synchronisation that it would leave undefined; whatever `thread` throws
/// passes. Launches from several threads run one after another.
void launch(const char* kernel, Dim3 grid, Dim3 block, size_t shared_bytes,
            const std::function<void()>& thread);

/// The block's dynamic shared memory.
void* dynamic_shared();

void block_barrier();
/// Waits for all lanes of the warp, which `mask` must name, in the same function `what` and returns
/// what each gave; valid until the lane's next exchange.
const std::array<uint64_t, kWarpSize>& warp_exchange(const char* what, uint32_t mask,
                                                     uint64_t given);
void require_lane(const char* what, uint32_t mask, int lane);

}  // namespace ortmodule::cuda::emulation
