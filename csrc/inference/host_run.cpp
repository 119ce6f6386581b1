#include "inference/host_run.h"

#include <utility>

#include "base/error.h"
#include "inference/bound_outputs.h"
#include "inference/copy_elements.h"
#include "runtime/program.h"

namespace ortmodule {
namespace {

// Step by step, with a look at `watch` before each.
void execute_watched(const Program& program, Frame& frame, KernelContext& context,
                     const RunWatch& watch) {
  const Plan& plan = *program.plan;
  for (int s = 0; s < plan.forward_steps; ++s) {
    ORTM_CHECK(!watch.terminate || !*watch.terminate,
               "[terminated] Exiting due to terminate flag being set to true, before step ", s,
               " of ", plan.forward_steps);
    if (!watch.profile) {
      execute(program, frame, context, s, s + 1, false);
      continue;
    }
    const PlannedStep& step = plan.step(s);
    int64_t live_bytes = frame.live_bytes() + step.library_bytes;
    for (BufferId buffer : program.steps[static_cast<size_t>(s)].allocate)
      if (!plan.buffers[buffer].kernel_allocated) live_bytes += plan.buffers[buffer].bytes;
    const auto begin = Profile::Clock::now();
    execute(program, frame, context, s, s + 1, false);
    watch.profile->add_step(step, begin, Profile::Clock::now(), live_bytes);
  }
}

}  // namespace

void execute_forward(const Program& program, Frame& frame, KernelContext& context,
                     const RunWatch& watch) {
  if (watch.terminate || watch.profile)
    execute_watched(program, frame, context, watch);
  else
    execute(program, frame, context, 0, program.plan->forward_steps, false);
}

bool take_output(const Plan& plan, Frame& frame, size_t i, const std::vector<bool>& lent,
                 HostRun& run) {
  const PlannedTensor& tensor = plan.tensors[plan.output_tensors[i]];
  HostTensor& result = run.outputs.emplace_back();
  result.dtype = tensor.dtype;
  result.sizes = tensor.layout.sizes;
  const BufferId buffer = plan.storages[tensor.storage].buffer;
  if (!buffer || (!lent.empty() && lent[i])) return false;
  result.memory = frame.take(buffer);
  return true;
}

BufferId block_of(const Plan& plan) {
  BufferId block;
  for (BufferId buffer : plan.buffers.ids()) {
    if (plan.buffers[buffer].kind != BufferKind::ForwardArena) continue;
    if (block) return {};
    block = buffer;
  }
  return block;
}

HostRun run_on_host(const PlanEntry& entry, const std::vector<const void*>& arguments,
                    HostMemory& memory, WorkerPool& pool, uint64_t seed, const HostTargets& targets,
                    const RunWatch& watch) {
  const Program& program = entry.program;
  const Plan& plan = *program.plan;
  Frame frame(program, memory);
  const BufferId block = block_of(plan);
  for (BufferId buffer : plan.buffers.ids()) {
    const PlannedBuffer& planned = plan.buffers[buffer];
    if (planned.kind == BufferKind::Argument)
      frame.bind(buffer, const_cast<void*>(arguments.at(planned.index)));  // NOLINT: never written
    if (buffer == block) frame.provide(buffer, memory.allocate_block(planned.bytes));
  }
  const std::vector<bool> lent = lend_targets(plan, arguments, targets, frame);
  KernelContext context;
  context.parallel_for = pool.parallel_for();
  context.seed.value = seed;
  execute_forward(program, frame, context, watch);
  HostRun run;
  for (size_t i = 0; i < plan.output_tensors.size(); ++i) {
    if (!take_output(plan, frame, i, lent, run) || targets.empty() || !targets[i]) continue;
    HostTensor& result = run.outputs.back();
    copy_elements(result.sizes, size_of(result.dtype), result.memory.data(), {}, targets[i]->data,
                  targets[i]->strides);
    run.copied_bytes += result.byte_count();
    result.memory = Buffer();
  }
  run.peak_bytes = frame.peak_bytes();
  return run;
}

}  // namespace ortmodule
