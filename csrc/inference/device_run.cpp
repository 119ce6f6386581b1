#include "inference/device_run.h"

#include <utility>

#include "inference/bound_outputs.h"
#include "inference/copy_elements.h"
#include "runtime/program.h"

namespace ortmodule {
namespace {

// The targets that steps can write to.
HostTargets on_device(const HostTargets& targets) {
  HostTargets found(targets.size());
  for (size_t i = 0; i < targets.size(); ++i)
    if (targets[i] && targets[i]->device != kOnHost && targets[i]->data) found[i] = targets[i];
  return found;
}

bool is_dense(const HostTarget& target) {
  return canonical_strides(target.sizes, target.strides).empty();
}

// Puts an output where the caller wants it.
void deliver(RunDevice& device, int number, HostMemory& memory, const HostTarget* target,
             HostTensor& result, HostRun& run) {
  const int64_t bytes = result.byte_count();
  if (target && target->device != kOnHost) {
    result.device = number;
    if (!target->data) return;
    ORTM_CHECK(is_dense(*target), "[run] memory on a device that an output is bound to must be ",
               "row-major where a step cannot write to it, but found strides: bind another");
    Buffer host = memory.allocate(bytes);
    device.download(host.data(), result.memory.data(), bytes);
    device.upload(target->data, host.data(), bytes);
    run.copied_bytes += bytes;
    result.memory = Buffer();
    return;
  }
  if (target && is_dense(*target)) {
    device.download(target->data, result.memory.data(), bytes);
    result.memory = Buffer();
    return;
  }
  Buffer host = memory.allocate(bytes);
  device.download(host.data(), result.memory.data(), bytes);
  result.memory = std::move(host);
  if (!target) return;
  copy_elements(result.sizes, size_of(result.dtype), result.memory.data(), {}, target->data,
                target->strides);
  run.copied_bytes += bytes;
  result.memory = Buffer();
}

}  // namespace

HostRun run_on_device(const PlanEntry& entry, const std::vector<const void*>& arguments,
                      const RunDeviceOptions& where, HostMemory& memory, uint64_t seed,
                      const HostTargets& targets, const RunWatch& watch) {
  RunDevice& device = run_device(where.number);
  const Program& program = entry.program;
  const Plan& plan = *program.plan;
  HostRun run;
  device.run([&](KernelContext& context) {
    Frame frame(program, device.allocator());
    for (BufferId buffer : plan.buffers.ids())
      if (plan.buffers[buffer].kind == BufferKind::Argument)
        frame.bind(buffer,  // NOLINTNEXTLINE: never written
                   const_cast<void*>(arguments.at(plan.buffers[buffer].index)));
    const HostTargets places = on_device(targets);
    const std::vector<bool> lent = lend_targets(plan, arguments, places, frame);
    context.seed.value = seed;
    if (where.convolution_search) context.convolution_search = *where.convolution_search;
    context.allow_tf32 = context.allow_convolution_tf32 = where.allow_tf32;
    execute_forward(program, frame, context, watch);
    for (size_t i = 0; i < plan.output_tensors.size(); ++i) {
      if (!take_output(plan, frame, i, lent, run)) continue;
      const HostTarget* target = targets.empty() || !targets[i] ? nullptr : &*targets[i];
      deliver(device, where.number, memory, target, run.outputs.back(), run);
    }
    run.peak_bytes = frame.peak_bytes();
  });
  device.synchronize();
  return run;
}

}  // namespace ortmodule
