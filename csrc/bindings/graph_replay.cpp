#include "bindings/graph_replay.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "bindings/run_state.h"
#include "bindings/tensor_layout.h"
#include "kernels/step_compiler.h"

namespace ortmodule::bindings {
namespace {

/// How often parameters may move, and how often the backward pass of a recorded forward may differ
/// from the plan's, before the plan falls back to step by step for good.
constexpr int kMostMoves = 8;
constexpr int kMostAttempts = 3;

/// Where a graph writes a result; dtype Undefined if there is none.
struct Place {
  void* data = nullptr;
  int64_t bytes = 0;
  DType dtype = DType::Undefined;
  Layout layout;
};

Place place_of(const PlannedTensor& tensor, const Buffer& buffer) {
  return {buffer.data(), buffer.bytes(), tensor.dtype, tensor.layout};
}

/// The memory of a buffer as a flat tensor.
at::Tensor elements_at(void* data, int64_t bytes, DType dtype, const DeviceRuntime& runtime) {
  const Layout flat{{bytes / static_cast<int64_t>(size_of(dtype))}, {1}, 0};
  return tensor_from(Buffer(data, bytes, nullptr, [](void*) {}), dtype, flat, runtime);
}

/// Copies of results for the caller, undefined where there is none. One call copies all, which
/// saves launches.
std::vector<at::Tensor> copies_of(const std::vector<Place>& places, DeviceRuntime& runtime) {
  std::vector<at::Tensor> copies, to, from;
  for (const Place& place : places) {
    if (place.dtype == DType::Undefined) {
      copies.emplace_back();
      continue;
    }
    Buffer memory = runtime.allocator().allocate(place.bytes);
    if (place.bytes > 0) {
      to.push_back(elements_at(memory.data(), place.bytes, place.dtype, runtime));
      from.push_back(elements_at(place.data, place.bytes, place.dtype, runtime));
    }
    copies.push_back(tensor_from(std::move(memory), place.dtype, place.layout, runtime));
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
  return copies;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

bool is_read_in_place(const Plan& plan, size_t input) {
  return plan.graph->inputs()[input].kind != InputKind::User;
}

}  // namespace

/// How forward or backward of a run is launched.
enum class GraphMode : uint8_t { StepByStep, Recorded, Replayed };

/// The graphs of one plan. Only the holder of the lease may access it.
struct Recording {
  int runs = 0, moves = 0, attempts = 0;
  bool refused = false;
  bool complete = false;
  std::unique_ptr<RecordedSteps> forward;
  std::vector<std::unique_ptr<RecordedSteps>> ranges;
  IdVector<BufferId, const void*> addresses;  // that the graph reads arguments from
  IdVector<BufferId, at::Tensor> staged;      // static memory of inputs that are copied in
  std::vector<Place> outputs;
  std::vector<Buffer> kept_outputs;           // that backward reads, until backward is recorded
  std::vector<std::vector<Place>> gradients;  // by range and its inputs
  FrameContent after_forward;
  RunSeed seed;
  int64_t peak_bytes = 0;

  /// Resets everything to record again.
  void restart(const Plan& plan) {
    complete = false;
    forward.reset();
    ranges.clear();
    addresses.assign(plan.buffers.size(), nullptr);
    staged.assign(plan.buffers.size(), at::Tensor());
    outputs.clear();
    kept_outputs.clear();
    gradients.assign(plan.ranges, {});
    after_forward = {};
    seed = {};
  }
};

namespace {

/// The state of one run.
struct GraphRun : RunnerState {
  GraphMode forward = GraphMode::StepByStep;
  GraphMode backward = GraphMode::StepByStep;
  std::shared_ptr<Recording> recording;
  std::shared_ptr<void> lease;               // of the recordings' memory
  std::vector<const void*> saved_addresses;  // of the tensors given to autograd to save
};

/// The state of this run, which this runner has created in forward().
GraphRun& part_of(RunState& state) { return static_cast<GraphRun&>(*state.runner); }

/// Whether the address of an argument that the graphs read in place has changed.
bool has_moved(const RunState& state, const Recording& recording) {
  const Plan& plan = state.plan();
  for (BufferId b : plan.buffers.ids()) {
    const PlannedBuffer& buffer = plan.buffers[b];
    if (buffer.kind != BufferKind::Argument || !is_read_in_place(plan, buffer.index)) continue;
    const at::Tensor& tensor = state.tensors[buffer.index];
    if (tensor.const_data_ptr() != recording.addresses[b]) return true;
  }
  return false;
}

}  // namespace

GraphReplay::GraphReplay(DeviceRuntime& runtime, std::unique_ptr<StepRecorder> recorder)
    : runtime_(runtime), recorder_(std::move(recorder)) {
  if (!recorder_)
    counts_.refusals.push_back(
        str("steps on ", runtime.device().str(), " cannot be recorded as CUDA graphs"));
}

GraphReplay::~GraphReplay() = default;

std::shared_ptr<void> GraphReplay::lease() {
  if (leased_->exchange(true)) return nullptr;
  return {leased_.get(), [leased = leased_](void*) { *leased = false; }};
}

std::shared_ptr<Recording> GraphReplay::recording_of(const RunState& state) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Recording>& recording = recordings_[state.entry];
  if (!recording) {
    // Of plans that the cache has evicted.
    std::erase_if(recordings_, [](const auto& known) { return known.first.expired(); });
    recording = std::make_shared<Recording>();
  }
  return recording;
}

void GraphReplay::refuse(Recording& recording, const std::string& reason) {
  recording.refused = true;
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(counts_.refusals, reason) == counts_.refusals.end())
    counts_.refusals.push_back(reason);
}

void GraphReplay::forward(RunState& state) {
  state.runner = std::make_unique<GraphRun>();
  if (!try_forward(state)) step_by_step_.forward(state);
}

bool GraphReplay::try_forward(RunState& state) {
  const bool trains = state.piece.session().training();
  // Inside a CUDA graph capture by the user, steps are launched one by one.
  if (!recorder_ || trains != state.records_gradients || runtime_.capturing()) return false;
  std::shared_ptr<void> lease = this->lease();
  if (!lease) {
    const std::lock_guard lock(mutex_);
    ++counts_.in_flight;
    return false;
  }
  const std::shared_ptr<Recording> recording = recording_of(state);
  if (recording->refused)
    recording->restart(state.plan());  // refused during backward: frees its graphs
  if (recording->refused || recording->runs++ == 0) return false;
  recorder_->join();
  if (recording->complete && has_moved(state, *recording)) {
    recording->complete = false;
    if (++recording->moves > kMostMoves)
      refuse(*recording, "parameters or buffers move from step to step");
  } else if (!recording->complete && recording->forward && ++recording->attempts > kMostAttempts) {
    refuse(*recording, "a forward is not followed by one backward pass from all its outputs");
  }
  if (!recording->refused && !recording->complete) {
    record_forward(state, *recording);
  } else if (recording->complete) {
    replay_forward(state, *recording);
  }
  if (recording->refused) {
    recording->restart(state.plan());
    return false;
  }
  GraphRun& run = part_of(state);
  run.recording = recording;
  if (trains) run.lease = std::move(lease);
  return true;
}

void GraphReplay::record_forward(RunState& state, Recording& recording) {
  const Program& program = state.entry->program;
  const Plan& plan = state.plan();
  for (size_t argument : plan.mutated_arguments)
    if (!is_read_in_place(plan, argument))
      return refuse(recording, "an argument of the module is changed in place");
  if (plan.host_bytes > 0)
    return refuse(recording, "some values are kept on the host (ORTMODULE_OFFLOAD)");
  recording.restart(plan);
  for (BufferId b : plan.buffers.ids()) {
    const PlannedBuffer& buffer = plan.buffers[b];
    if (buffer.kind != BufferKind::Argument) continue;
    at::Tensor read = state.tensors[buffer.index];
    if (!is_read_in_place(plan, buffer.index)) {
      const TensorId tensor = program.argument_tensor[buffer.index];
      read = recording.staged[b] = copied(read, plan.tensors[tensor].layout);
    }
    recording.addresses[b] = read.const_data_ptr();
    state.frame.bind(b, read.mutable_data_ptr());
  }
  // A graph keeps the kernels that it is recorded with, and loading is not allowed while it is.
  if (StepCompiler* compiler = step_compiler()) compiler->finish();
  choose_code(state);
  try {
    recording.forward = recorder_->record([&] { launch_forward(state); });
  } catch (const std::exception& error) {
    state.frame.borrow({});
    state.seed = {};
    return refuse(recording, first_line(error.what()));
  }
  recording.seed = state.seed.seed;
  for (size_t k = 0; k < plan.output_tensors.size(); ++k) {
    const PlannedTensor& tensor = plan.tensors[plan.output_tensors[k]];
    recording.kept_outputs.push_back(state.frame.take(plan.storages[tensor.storage].buffer));
    recording.outputs.push_back(place_of(tensor, recording.kept_outputs.back()));
  }
  recording.after_forward = state.frame.content();
  part_of(state).forward = GraphMode::Recorded;
  give_outputs(state, recording);
  for (size_t k = 0; k < recording.kept_outputs.size(); ++k)
    if (std::ranges::find(plan.saved_outputs, k) == plan.saved_outputs.end())
      recording.kept_outputs[k] = Buffer();
  recording.complete = !state.piece.session().training();
  if (!recording.complete) return;
  recording.peak_bytes = state.frame.peak_bytes();
  const std::lock_guard lock(mutex_);
  ++counts_.recorded;
}

void GraphReplay::replay_forward(RunState& state, Recording& recording) {
  const Plan& plan = state.plan();
  for (BufferId b : plan.buffers.ids())
    if (plan.buffers[b].kind == BufferKind::Argument) {
      if (recording.staged[b].defined())
        copy_values(recording.staged[b], state.tensors[plan.buffers[b].index]);
      state.frame.bind(b, const_cast<void*>(recording.addresses[b]));
    }
  recording.forward->replay();
  state.frame.borrow(recording.after_forward);
  state.seed.seed = recording.seed;
  part_of(state).forward = GraphMode::Replayed;
  give_outputs(state, recording);
  const std::lock_guard lock(mutex_);
  ++counts_.replayed;
}

void GraphReplay::give_outputs(RunState& state, Recording& recording) {
  state.outputs = copies_of(recording.outputs, runtime_);
  recorder_->note_use();
  std::vector<const void*>& saved = part_of(state).saved_addresses;
  for (size_t argument : state.plan().saved_arguments)
    saved.push_back(state.tensors[argument].const_data_ptr());
  for (size_t output : state.plan().saved_outputs)
    saved.push_back(state.outputs[output].const_data_ptr());
}

void GraphReplay::begin_backward(RunState& state, const std::vector<at::Tensor>& saved) {
  GraphRun& run = part_of(state);
  run.backward = GraphMode::StepByStep;
  if (run.forward == GraphMode::StepByStep) return;
  bool as_left = saved.size() == run.saved_addresses.size();
  for (size_t i = 0; as_left && i < saved.size(); ++i)
    as_left = saved[i].defined() && saved[i].const_data_ptr() == run.saved_addresses[i];
  // The recorded pass is the one with all gradients, without retain_graph and without hooks on
  // saved tensors. Others run step by step.
  if (as_left && state.backward == &state.entry->program && !runtime_.capturing()) {
    run.backward = run.forward;
    return;
  }
  if (run.forward == GraphMode::Replayed) own_gradients(state);
  run.forward = GraphMode::StepByStep;
}

/// Copies gradient buffers that forward allocated: they will be returned to the caller, so they
/// must not be memory of the recording.
void GraphReplay::own_gradients(RunState& state) {
  for (const FrameContent::Held& held : state.frame.content().held) {
    if (state.plan().buffers[held.buffer].kind != BufferKind::Gradient) continue;
    Buffer own = runtime_.allocator().allocate(held.bytes);
    if (held.bytes > 0)
      elements_at(own.data(), held.bytes, DType::UInt8, runtime_)
          .copy_(elements_at(held.data, held.bytes, DType::UInt8, runtime_));
    state.frame.replace(held.buffer, std::move(own));
  }
}

void GraphReplay::bound_backward(RunState& state) {
  const GraphRun& run = part_of(state);
  if (run.backward == GraphMode::StepByStep) return;
  Recording& recording = *run.recording;
  recorder_->join();
  for (const auto& [buffer, gradient] : state.arrived) {
    at::Tensor& staged = recording.staged[buffer];
    if (run.backward == GraphMode::Recorded) {
      staged = at::empty_like(gradient);
      state.frame.bind(buffer, staged.mutable_data_ptr());
    }
    copy_values(staged, gradient);
  }
  if (run.backward != GraphMode::Recorded) return;
  const Plan& plan = state.plan();
  for (BufferId b : plan.buffers.ids())
    if (plan.buffers[b].kind == BufferKind::Argument)
      state.frame.bind(b, const_cast<void*>(recording.addresses[b]));
  for (size_t output : plan.saved_outputs)
    state.frame.bind(state.backward->output_buffer[output], recording.outputs[output].data);
}

std::vector<at::Tensor> GraphReplay::backward(RunState& state, size_t range,
                                              const std::vector<int64_t>& inputs, bool keep_saved) {
  const GraphRun& run = part_of(state);
  std::vector<Buffer> taken;  // kept until the copies are launched
  if (run.backward == GraphMode::Replayed)
    run.recording->ranges[range]->replay();
  else if (run.backward == GraphMode::StepByStep || !record_range(state, range, inputs, taken))
    return step_by_step_.backward(state, range, inputs, keep_saved);
  std::vector<at::Tensor> copies = copies_of(run.recording->gradients[range], runtime_);
  recorder_->note_use();
  return copies;
}

bool GraphReplay::record_range(RunState& state, size_t range, const std::vector<int64_t>& inputs,
                               std::vector<Buffer>& taken) {
  GraphRun& run = part_of(state);
  Recording& recording = *run.recording;
  const FrameContent before = state.frame.content();
  try {
    // A pass that can run again (retain_graph) is never recorded.
    recording.ranges.push_back(recorder_->record([&] { launch_range(state, range, false); }));
  } catch (const std::exception& error) {
    // No step has run: its operands are unchanged, since this run holds the lease.
    state.frame.borrow(before);
    own_gradients(state);
    run.forward = run.backward = GraphMode::StepByStep;
    refuse(recording, first_line(error.what()));
    return false;
  }
  const Plan& plan = state.plan();
  std::vector<Place>& gradients = recording.gradients[range];
  for (int64_t input : inputs) {
    const TensorId gradient = state.backward->gradient_tensor[static_cast<size_t>(input)];
    gradients.emplace_back();
    if (!gradient) continue;
    const PlannedTensor& tensor = plan.tensors[gradient];
    taken.push_back(state.frame.take_gradient(plan.storages[tensor.storage].buffer));
    gradients.back() = place_of(tensor, taken.back());
  }
  return true;
}

void GraphReplay::finished(RunState& state) {
  GraphRun& run = part_of(state);
  if (run.backward == GraphMode::Recorded) {
    Recording& recording = *run.recording;
    recording.complete = true;
    recording.attempts = 0;
    recording.peak_bytes = state.frame.peak_bytes();
    recording.kept_outputs.clear();
    const std::lock_guard lock(mutex_);
    ++counts_.recorded;
  } else if (run.backward == GraphMode::Replayed) {
    state.frame.borrow({.held = {}, .live_bytes = 0, .peak_bytes = run.recording->peak_bytes});
  }
}

std::optional<GraphCounts> GraphReplay::graph_counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::vector<std::string> GraphReplay::take_warnings() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> warnings;
  for (; warned_ < counts_.refusals.size(); ++warned_)
    warnings.push_back("[ORTMODULE_CUDA_GRAPH] steps run one by one: " + counts_.refusals[warned_]);
  return warnings;
}

}  // namespace ortmodule::bindings
