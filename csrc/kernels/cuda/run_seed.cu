#include <cuda_runtime.h>

#include "kernels/cuda/run_seed.h"
#include "kernels/philox.h"

namespace ortmodule::cuda {

static __global__ void run_key_kernel(uint64_t* key, const int64_t* seed, const int64_t* offset,
                                      uint64_t offset_in_graph) {
  *key = run_key(static_cast<uint64_t>(*seed), static_cast<uint64_t>(*offset) + offset_in_graph);
}

void write_run_key(uint64_t* key, const int64_t* seed, const int64_t* offset,
                   uint64_t offset_in_graph, void* stream) {
#if defined(ORTM_CUDA_EMULATION)
  (void)stream;
  run_key_kernel(key, seed, offset, offset_in_graph);
#else
  run_key_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(key, seed, offset,
                                                                 offset_in_graph);
#endif
}

}  // namespace ortmodule::cuda
