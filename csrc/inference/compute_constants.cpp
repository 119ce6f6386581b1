#include "inference/compute_constants.h"

#include <memory>
#include <utility>

#include "inference/half_weights.h"
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

std::vector<HostTensor> run_plan(const PlanEntry& entry, const LoadedModel& model,
                                 const std::vector<OnnxTensor>& weights, WorkerPool& pool) {
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

std::vector<HostTensor> run_graph(std::unique_ptr<Graph> graph, const ConstantPart& part,
                                  const SessionOptions& options, const LoadedModel& model,
                                  const std::vector<OnnxTensor>& weights, WorkerPool& pool) {
  ExportedPiece piece;
  piece.graph = std::move(graph);
  piece.arguments = part.piece.arguments;
  piece.output_strides = part.piece.output_strides;
  Session session(std::move(piece), options);
  std::vector<Sizes> strides;
  std::vector<LayoutView> layouts;
  strides.reserve(weights.size());
  for (const OnnxTensor& weight : weights) {
    strides.push_back(contiguous_strides(weight.dims));
    layouts.push_back({weight.dims, strides.back()});
  }
  return run_plan(*session.plan_for({layouts, {}}), model, weights, pool);
}

// The first try, by output.
std::vector<DType> halves_of(const Graph& graph) {
  std::vector<DType> types;
  for (const GraphOutput& output : graph.outputs()) {
    Sizes sizes;
    for (const DimExpr& dim : output.value->dims) sizes.push_back(dim.value());
    const DType dtype = output.value->dtype;
    types.push_back(is_halvable(dtype, sizes) ? DType::Float16 : dtype);
  }
  return types;
}

}  // namespace

std::vector<HostTensor> compute_constants(const ConstantPart& part, const SessionOptions& options,
                                          const LoadedModel& model,
                                          const std::vector<OnnxTensor>& weights,
                                          WorkerPool& pool) {
  return run_graph(part.piece.graph->clone(), part, options, model, weights, pool);
}

std::vector<HostTensor> compute_halves(const ConstantPart& part, const SessionOptions& options,
                                       const LoadedModel& model,
                                       const std::vector<OnnxTensor>& weights, WorkerPool& pool) {
  std::vector<DType> types = halves_of(*part.piece.graph);
  while (true) {
    std::unique_ptr<Graph> graph = part.piece.graph->clone();
    halve_outputs(*graph, types);
    std::vector<HostTensor> made = run_graph(std::move(graph), part, options, model, weights, pool);
    bool fits = true;
    for (size_t i = 0; i < made.size(); ++i) {
      if (types[i] == part.piece.graph->outputs()[i].value->dtype || holds_values(made[i]))
        continue;
      types[i] = types[i] == DType::Float16 ? DType::BFloat16 : DType::Float32;
      fits = false;
    }
    if (fits) return made;
  }
}

}  // namespace ortmodule
