#include "inference/host_run.h"

#include <utility>

#include "runtime/program.h"

namespace ortmodule {

HostRun run_on_host(const PlanEntry& entry, const std::vector<const void*>& arguments,
                    HostMemory& memory, WorkerPool& pool, uint64_t seed) {
  const Program& program = entry.program;
  const Plan& plan = *program.plan;
  Frame frame(program, memory);
  for (BufferId buffer : plan.buffers.ids()) {
    const PlannedBuffer& planned = plan.buffers[buffer];
    if (planned.kind == BufferKind::Argument)
      frame.bind(buffer, const_cast<void*>(arguments.at(planned.index)));  // NOLINT: never written
  }
  KernelContext context;
  context.parallel_for = pool.parallel_for();
  context.seed.value = seed;
  execute(program, frame, context, 0, plan.forward_steps, false);
  HostRun run;
  for (TensorId output : plan.output_tensors) {
    const PlannedTensor& tensor = plan.tensors[output];
    HostTensor& result = run.outputs.emplace_back();
    result.dtype = tensor.dtype;
    result.sizes = tensor.layout.sizes;
    if (const BufferId buffer = plan.storages[tensor.storage].buffer)
      result.memory = frame.take(buffer);
  }
  run.peak_bytes = frame.peak_bytes();
  return run;
}

}  // namespace ortmodule
