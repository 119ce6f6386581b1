// One run of a plan on the host.
#pragma once

#include <atomic>
#include <vector>

#include "inference/host_tensor.h"
#include "inference/profile.h"
#include "runtime/host_memory.h"
#include "runtime/worker_pool.h"
#include "session/planner.h"

namespace ortmodule {

struct HostRun {
  std::vector<HostTensor> outputs;  // without memory where there was a target
  int64_t peak_bytes = 0;           // that the run allocated, outputs included
  int64_t copied_bytes = 0;         // to targets that no step could write to
};

/// What ends or watches a run between its steps.
struct RunWatch {
  const std::atomic<bool>* terminate = nullptr;  // once true, the run ends with an Error
  Profile* profile = nullptr;
};
/// Executes the forward steps, as `watch` says.
void execute_forward(const Program& program, Frame& frame, KernelContext& context,
                     const RunWatch& watch);

/// Adds output `i` to the run, and moves its memory out of the frame. False if it has none there:
/// it was lent, or is empty. `lent`: none, or by output.
bool take_output(const Plan& plan, Frame& frame, size_t i, const std::vector<bool>& lent,
                 HostRun& run);

/// The buffer that holds all temporaries, if there is one.
BufferId block_of(const Plan& plan);

/// Executes the forward steps. `arguments` has the address of each graph input's elements; null
/// where no step reads them. `targets`: none, or one for each output; they must fit the plan and
/// lie apart from each other, but may overlap arguments.
HostRun run_on_host(const PlanEntry& entry, const std::vector<const void*>& arguments,
                    HostMemory& memory, WorkerPool& pool, uint64_t seed,
                    const HostTargets& targets = {}, const RunWatch& watch = {});

}  // namespace ortmodule
