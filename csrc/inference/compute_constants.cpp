#include "inference/compute_constants.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "inference/half_weights.h"
#include "runtime/host_memory.h"
#include "runtime/program.h"

namespace ortmodule {
namespace {

// Whether a step would write to most huge pages of its result before it has read half of its
// operand: to panels of a matrix that lies column by column, or of whose rows a piece fills such
// pages, or to elements of fewer bits.
bool writes_far_ahead(const PlannedStep& step) {
  constexpr int64_t kManyColumns = 2048;
  const OperandFacts &from = step.facts->inputs[0], &to = step.facts->outputs[0];
  if (step.kernel->op != "PackWeights") return size_of(to.dtype) < size_of(from.dtype);
  return from.layout.strides[1] != 1 || from.layout.sizes[1] > kManyColumns;
}

// What copies of weights may take beyond the results.
constexpr int64_t kCopyBytes = 2 << 20;

// One run of a plan for constants. A weight that is in a file is copied for the steps that read it.
// While results that take more are still to come, copies share a block that stays; later a copy
// goes page by page while the last step that reads it runs, so that a weight and what is made of it
// are not there as a whole beside all others.
class ConstantRun : public ReadProgress {
 public:
  ConstantRun(const Program& program, const LoadedModel& model,
              const std::vector<OnnxTensor>& weights, WorkerPool& pool)
      : program_(program),
        plan_(*program.plan),
        model_(model),
        weights_(weights),
        frame_(program, memory_),
        copies_(weights.size()) {
    context_.parallel_for = pool.parallel_for();
    context_.progress = this;
    for (StorageId storage : plan_.storages.ids()) {
      const PlannedStorage& planned = plan_.storages[storage];
      if (planned.role == PlannedStorage::Role::Argument && planned.buffer)
        arguments_.push_back(storage);
      if (planned.role == PlannedStorage::Role::Output) coming_bytes_ += planned.bytes;
    }
    for (BufferId buffer : plan_.buffers.ids())
      if (plan_.buffers[buffer].kind == BufferKind::ForwardArena)
        temporary_bytes_ += plan_.buffers[buffer].bytes;
  }

  std::vector<HostTensor> run() {
    for (StorageId argument : arguments_) {
      const PlannedStorage& storage = plan_.storages[argument];
      if (!model_.is_in_file(weight_of(storage)) && model_.is_readable(weight_of(storage)))
        bind(storage, const_cast<char*>(weight_of(storage).bytes.data()));  // NOLINT: only read
    }
    for (int step = 0; step < plan_.forward_steps; ++step) run_step(step);
    std::vector<HostTensor> results;
    for (TensorId output : plan_.output_tensors) results.push_back(take(plan_.tensors[output]));
    for (const HostTensor& result : results)
      if (result.memory && in_small_pages_.contains(result.memory.data()))
        HostMemory::use_huge_pages(result.memory);
    return results;
  }

  void has_read(const void* first, size_t bytes) override {
    const auto begin = reinterpret_cast<uintptr_t>(first);
    for (const Range& range : last_read_)
      if (begin >= range.begin && begin + bytes <= range.end) HostMemory::discard(first, bytes);
  }

 private:
  struct Range {
    uintptr_t begin, end;
  };

  void run_step(int step) {
    for (StorageId output : new_outputs(step)) coming_bytes_ -= plan_.storages[output].bytes;
    copies_memory_.limit_kept(coming_bytes_ + kCopyBytes);
    for (StorageId argument : arguments_) {
      const PlannedStorage& storage = plan_.storages[argument];
      if (storage.first_step == step && !frame_.address(storage.buffer)) copy_weight(storage);
    }
    const int64_t held_bytes = copies_memory_.held_bytes() + temporary_bytes_;
    const bool follows = held_bytes > coming_bytes_ + kCopyBytes;
    context_.progress = follows ? this : nullptr;
    if (follows) note_last_reads(step);
    provide_outputs(step, follows && writes_far_ahead(plan_.step(step)));
    execute(program_, frame_, context_, step, step + 1, false);
    for (StorageId argument : arguments_)
      if (const PlannedStorage& storage = plan_.storages[argument]; storage.last_step == step)
        copy_of(storage) = Buffer();
  }

  // Storages of results that the step is the first to write to.
  std::vector<StorageId> new_outputs(int step) const {
    std::vector<StorageId> found;
    for (TensorId output : plan_.step(step).out) {
      if (!output) continue;
      const StorageId storage = plan_.tensors[output].storage;
      const PlannedStorage& planned = plan_.storages[storage];
      if (planned.role == PlannedStorage::Role::Output && planned.first_step == step &&
          planned.buffer && std::ranges::find(found, storage) == found.end())
        found.push_back(storage);
    }
    return found;
  }

  // Huge pages, and such as are there at once, would be resident beside what is not yet read.
  void provide_outputs(int step, bool far_ahead) {
    for (StorageId output : new_outputs(step)) {
      const PlannedStorage& storage = plan_.storages[output];
      Buffer memory = (far_ahead ? small_pages_ : memory_).allocate(storage.bytes);
      if (far_ahead)
        in_small_pages_.insert(memory.data());
      else if (!context_.progress)
        HostMemory::make_resident(memory);
      frame_.provide(storage.buffer, std::move(memory));
    }
  }

  void note_last_reads(int step) {
    std::vector<StorageId> read;
    for (TensorId input : plan_.step(step).in)
      if (input) read.push_back(plan_.tensors[input].storage);
    last_read_.clear();
    for (StorageId id : read) {
      const PlannedStorage& storage = plan_.storages[id];
      const bool is_ours = storage.role == PlannedStorage::Role::Forward ||
                           (storage.role == PlannedStorage::Role::Argument && copy_of(storage));
      // Of two operands in one storage, one does not know what the other reads.
      const bool is_one = std::count(read.begin(), read.end(), id) == 1;
      if (!storage.buffer || storage.last_step != step || !is_ours || !is_one) continue;
      const auto begin =
          reinterpret_cast<uintptr_t>(frame_.address(storage.buffer)) + storage.offset_bytes;
      last_read_.push_back({begin, begin + static_cast<uintptr_t>(storage.bytes)});
    }
  }

  void copy_weight(const PlannedStorage& storage) {
    const OnnxTensor& weight = weight_of(storage);
    Buffer& copy = copy_of(storage);
    copy = copies_memory_.allocate(LoadedModel::memory_bytes(weight));
    HostMemory::make_resident(copy);  // a block that is used again has its pages
    model_.copy_weight(weight, copy.data());
    bind(storage, copy.data());
  }

  const OnnxTensor& weight_of(const PlannedStorage& storage) const {
    return weights_.at(storage.index);
  }
  Buffer& copy_of(const PlannedStorage& storage) { return copies_.at(storage.index); }
  void bind(const PlannedStorage& storage, void* data) { frame_.bind(storage.buffer, data); }

  HostTensor take(const PlannedTensor& tensor) {
    HostTensor result;
    result.dtype = tensor.dtype;
    result.sizes = tensor.layout.sizes;
    if (const BufferId buffer = plan_.storages[tensor.storage].buffer)
      result.memory = frame_.take(buffer);
    return result;
  }

  const Program& program_;
  const Plan& plan_;
  const LoadedModel& model_;
  const std::vector<OnnxTensor>& weights_;
  HostMemory memory_;
  HostMemory small_pages_{HostMemory::Keep::Nothing, HostMemory::Pages::Small};
  HostMemory copies_memory_{HostMemory::Keep::WhileUsed};
  Frame frame_;
  KernelContext context_;
  std::vector<Buffer> copies_;  // by weight
  std::vector<StorageId> arguments_;
  std::vector<Range> last_read_;  // by no step after the current one
  std::set<const void*> in_small_pages_;
  int64_t coming_bytes_ = 0;     // of results of later steps
  int64_t temporary_bytes_ = 0;  // of what is between the weights and results
};

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
  const auto entry = session.plan_for({layouts, {}});
  return ConstantRun(entry->program, model, weights, pool).run();
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

std::vector<HostTensor> compute_constants(ConstantPart part, const SessionOptions& options,
                                          const LoadedModel& model,
                                          const std::vector<OnnxTensor>& weights,
                                          WorkerPool& pool) {
  return run_graph(std::move(part.piece.graph), part, options, model, weights, pool);
}

std::vector<HostTensor> compute_halves(ConstantPart part, const SessionOptions& options,
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
