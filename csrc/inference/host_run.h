// One run of a plan on the host.
#pragma once

#include <vector>

#include "inference/host_tensor.h"
#include "runtime/host_memory.h"
#include "runtime/worker_pool.h"
#include "session/planner.h"

namespace ortmodule {

struct HostRun {
  std::vector<HostTensor> outputs;
  int64_t peak_bytes = 0;  // that the run allocated, outputs included
};

/// Executes the forward steps. `arguments` has the address of each graph input's elements; null
/// where no step reads them.
HostRun run_on_host(const PlanEntry& entry, const std::vector<const void*>& arguments,
                    HostMemory& memory, WorkerPool& pool, uint64_t seed);

}  // namespace ortmodule
