#include "inference/compute_constants.h"

#include <utility>

#include "runtime/host_memory.h"
#include "runtime/program.h"

namespace ortmodule {
namespace {

// The steps that read a graph input.
struct Readers {
  int first = -1;
  int last = -1;
};

std::vector<Readers> readers_of(const Plan& plan, size_t inputs) {
  std::vector<Readers> readers(inputs);
  for (const PlannedStorage& storage : plan.storages)
    if (storage.role == PlannedStorage::Role::Argument)
      readers.at(storage.index) = {storage.first_step, storage.last_step};
  return readers;
}

}  // namespace

std::vector<HostTensor> compute_constants(const PlanEntry& entry, const LoadedModel& model,
                                          const std::vector<OnnxTensor>& weights,
                                          WorkerPool& pool) {
  const Program& program = entry.program;
  const Plan& plan = *program.plan;
  HostMemory memory;
  Frame frame(program, memory);
  KernelContext context;
  context.parallel_for = pool.parallel_for();
  const std::vector<Readers> readers = readers_of(plan, weights.size());
  std::vector<Buffer> copies(weights.size());
  const auto bind = [&](size_t input, void* data) {
    if (const BufferId buffer = program.argument_buffer.at(input)) frame.bind(buffer, data);
  };
  for (size_t i = 0; i < weights.size(); ++i)
    if (model.is_readable(weights[i]))
      bind(i, const_cast<char*>(weights[i].bytes.data()));  // NOLINT: never written
  for (int step = 0; step < plan.forward_steps; ++step) {
    for (size_t i = 0; i < weights.size(); ++i) {
      if (readers[i].first != step || model.is_readable(weights[i])) continue;
      copies[i] = memory.allocate(LoadedModel::memory_bytes(weights[i]));
      model.copy_weight(weights[i], copies[i].data());
      bind(i, copies[i].data());
    }
    execute(program, frame, context, step, step + 1, false);
    for (size_t i = 0; i < weights.size(); ++i)
      if (readers[i].last == step) copies[i] = Buffer();
  }
  std::vector<HostTensor> results;
  for (TensorId output : plan.output_tensors) {
    const PlannedTensor& tensor = plan.tensors[output];
    HostTensor& result = results.emplace_back();
    result.dtype = tensor.dtype;
    result.sizes = tensor.layout.sizes;
    if (const BufferId buffer = plan.storages[tensor.storage].buffer)
      result.memory = frame.take(buffer);
  }
  return results;
}

}  // namespace ortmodule
