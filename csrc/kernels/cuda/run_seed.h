// The key of a run whose step is captured as a CUDA graph, made on the device.
#pragma once

#include <cstdint>

namespace ortmodule::cuda {

/// Writes run_key(*seed, *offset + offset_in_graph) to `key`, device memory all of it, on `stream`.
/// Throws Error if the launch fails. The process's first call loads the kernel, which is not legal
/// while a graph is captured.
void write_run_key(uint64_t* key, const int64_t* seed, const int64_t* offset,
                   uint64_t offset_in_graph, void* stream);

}  // namespace ortmodule::cuda
