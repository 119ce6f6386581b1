#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run_seed.h"
#include "kernels/philox.h"

namespace ortmodule::cuda {

static __global__ void run_key_cuda(uint64_t* key, const int64_t* seed, const int64_t* offset,
                                    uint64_t offset_in_graph) {
  *key = run_key(static_cast<uint64_t>(*seed), static_cast<uint64_t>(*offset) + offset_in_graph);
}

void write_run_key(uint64_t* key, const int64_t* seed, const int64_t* offset,
                   uint64_t offset_in_graph, void* stream) {
  launch("run_key_cuda", run_key_cuda, grid_of(1), 1, 0, static_cast<cudaStream_t>(stream), key,
         seed, offset, offset_in_graph);
}

}  // namespace ortmodule::cuda
