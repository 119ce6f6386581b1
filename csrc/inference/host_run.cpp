#include "inference/host_run.h"

#include <utility>

#include "inference/bound_outputs.h"
#include "inference/copy_elements.h"
#include "runtime/program.h"

namespace ortmodule {

HostRun run_on_host(const PlanEntry& entry, const std::vector<const void*>& arguments,
                    HostMemory& memory, WorkerPool& pool, uint64_t seed,
                    const HostTargets& targets) {
  const Program& program = entry.program;
  const Plan& plan = *program.plan;
  Frame frame(program, memory);
  for (BufferId buffer : plan.buffers.ids()) {
    const PlannedBuffer& planned = plan.buffers[buffer];
    if (planned.kind == BufferKind::Argument)
      frame.bind(buffer, const_cast<void*>(arguments.at(planned.index)));  // NOLINT: never written
  }
  const std::vector<bool> lent = lend_targets(plan, arguments, targets, frame);
  KernelContext context;
  context.parallel_for = pool.parallel_for();
  context.seed.value = seed;
  execute(program, frame, context, 0, plan.forward_steps, false);
  HostRun run;
  for (size_t i = 0; i < plan.output_tensors.size(); ++i) {
    const PlannedTensor& tensor = plan.tensors[plan.output_tensors[i]];
    HostTensor& result = run.outputs.emplace_back();
    result.dtype = tensor.dtype;
    result.sizes = tensor.layout.sizes;
    const BufferId buffer = plan.storages[tensor.storage].buffer;
    if (!buffer || (!lent.empty() && lent[i])) continue;
    result.memory = frame.take(buffer);
    if (targets.empty() || !targets[i]) continue;
    copy_elements(result.sizes, size_of(result.dtype), result.memory.data(), {}, targets[i]->data,
                  targets[i]->strides);
    run.copied_bytes += result.byte_count();
    result.memory = Buffer();
  }
  run.peak_bytes = frame.peak_bytes();
  return run;
}

}  // namespace ortmodule
