#include "runtime/program.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ortmodule {
namespace {

ProgramOperand operand_of(const Plan& plan, TensorId tensor) {
  ProgramOperand operand;
  if (!tensor) return operand;
  const PlannedTensor& t = plan.tensors[tensor];
  const PlannedStorage& storage = plan.storages[t.storage];
  operand.view.dtype = t.dtype;
  operand.view.rank = static_cast<int>(t.layout.sizes.size());
  operand.view.sizes = t.layout.sizes.data();
  operand.view.strides = t.layout.strides.data();
  operand.buffer = storage.buffer;
  operand.offset_bytes =
      storage.offset_bytes + t.layout.offset * static_cast<int64_t>(size_of(t.dtype));
  // Empty tensors and unused outputs have no memory.
  ORTM_ASSERT(storage.buffer || storage.bytes == 0, "storage of ", storage.name.text(),
              " has no buffer");
  return operand;
}

void keep_lent_memory(void*) {}

bool is_kept_for_backward(const PlannedBuffer& buffer) {
  return buffer.kind == BufferKind::Saved || buffer.kind == BufferKind::Host;
}

}  // namespace

void Program::add_step(const PlannedStep& planned) {
  ProgramStep& step = steps.emplace_back();
  const auto list = [&](const TensorList& tensors) {
    const size_t first = operands_.size();
    for (TensorId tensor : tensors) operands_.push_back(operand_of(*plan, tensor));
    return std::span<const ProgramOperand>(operands_).subspan(first);
  };
  step.in = list(planned.in);
  step.out = list(planned.out);
  step.run = planned.kernel->run;
  step.library_bytes = planned.library_bytes;
  step.inexact = planned.kernel->inexact;
  step.allocates_outputs = planned.kernel->allocates_outputs;
  step.facts = planned.facts.get();
  step.prepared = planned.prepared.get();
  if (planned.workspace_storage) {
    const auto& storage = plan->storages[planned.workspace_storage];
    step.workspace_buffer = storage.buffer;
    step.workspace_offset_bytes = storage.offset_bytes;
  }
  most_operands = std::max(most_operands, step.in.size() + step.out.size());
  if (step.allocates_outputs) most_results = std::max(most_results, step.out.size());
  for (const NodeFacts& node : planned.facts->nodes) random = random || node.attrs.has("rng");
}

void Program::list_buffers() {
  if (steps.empty()) return;
  std::vector<Event> first, last;
  for (BufferId id : plan->buffers.ids()) {
    const PlannedBuffer& buffer = plan->buffers[id];
    if (!buffer.owned()) continue;
    first.push_back({static_cast<size_t>(buffer.first_step), id});
    if (!buffer.returned()) last.push_back({static_cast<size_t>(buffer.last_step), id});
  }
  list(std::move(first), allocated_, &ProgramStep::allocate);
  list(std::move(last), released_, &ProgramStep::release);
}

void Program::list(std::vector<Event> events, std::vector<BufferId>& all,
                   std::span<const BufferId> ProgramStep::*of_step) {
  std::ranges::stable_sort(events, {}, &Event::step);
  all.reserve(events.size());
  for (const Event& event : events) {
    auto& listed = steps[event.step].*of_step;
    all.push_back(event.buffer);
    listed = {&all.back() - listed.size(), listed.size() + 1};
  }
}

Program::Program(std::shared_ptr<const Plan> made) : plan(std::move(made)) {
  size_t operands = 0;
  for (const PlannedStep& planned : plan->steps) operands += planned.in.size() + planned.out.size();
  operands_.reserve(operands);
  steps.reserve(plan->steps.size());
  for (const PlannedStep& planned : plan->steps) add_step(planned);
  list_buffers();
  const auto& inputs = plan->graph->inputs();
  argument_buffer.resize(inputs.size());
  argument_tensor.resize(inputs.size());
  gradient_tensor.resize(inputs.size());
  output_buffer.resize(plan->output_tensors.size());
  for (BufferId id : plan->buffers.ids()) {
    const PlannedBuffer& buffer = plan->buffers[id];
    if (!buffer.owned()) argument_buffer[buffer.index] = id;
    if (buffer.kind == BufferKind::Output) output_buffer[buffer.index] = id;
  }
  for (TensorId id : plan->tensors.ids()) {
    const PlannedStorage& storage = plan->storage_of(id);
    if (storage.role != PlannedStorage::Role::Argument) continue;
    if (plan->tensors[id].value == inputs[storage.index].value) argument_tensor[storage.index] = id;
  }
  for (const PlannedGradient& gradient : plan->gradients)
    gradient_tensor[gradient.input] = gradient.tensor;
  range_begin.push_back(plan->forward_steps);
  for (size_t r = 1; r < plan->ranges; ++r) {
    int at = range_begin.back();
    while (at < plan->step_count() && plan->step(at).range < r) ++at;
    range_begin.push_back(at);
  }
  range_begin.push_back(plan->step_count());
}

Frame::Frame(const Program& program, Allocator& allocator)
    : program_(&program), allocator_(allocator) {
  owned_.resize(program.plan->buffers.size());
  base_.assign(program.plan->buffers.size(), nullptr);
}

void Frame::begin(BufferId buffer) {
  const PlannedBuffer& planned = program_->plan->buffers[buffer];
  if (planned.kernel_allocated || owned_[buffer].deleter() == &keep_lent_memory) return;
  const bool on_host = planned.kind == BufferKind::Host;
  if (!owned_[buffer]) {
    ORTM_ASSERT(!on_host || host_allocator_, "a plan with values on the host runs without it");
    owned_[buffer] = (on_host ? *host_allocator_ : allocator_).allocate(planned.bytes);
  }
  base_[buffer] = owned_[buffer].data();
  if (on_host) return;
  live_bytes_ += planned.bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
}

void Frame::lend(BufferId buffer, void* data) {
  owned_[buffer] = Buffer(data, 0, nullptr, &keep_lent_memory);
  base_[buffer] = data;
}

void Frame::adopt(BufferId buffer, Buffer result) {
  owned_[buffer] = std::move(result);
  base_[buffer] = owned_[buffer].data();
  live_bytes_ += owned_[buffer].bytes();
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
}

void Frame::end(BufferId buffer) {
  if (!owned_[buffer]) return;
  if (program_->plan->buffers[buffer].kind != BufferKind::Host)
    live_bytes_ -= owned_[buffer].bytes();
  owned_[buffer] = Buffer();
  base_[buffer] = nullptr;
}

Buffer Frame::take(BufferId buffer) { return std::move(owned_[buffer]); }

Buffer Frame::take_gradient(BufferId buffer) {
  taken_gradient_bytes_ += owned_[buffer].bytes();
  return take(buffer);
}

void Frame::hand_over() { live_bytes_ -= std::exchange(taken_gradient_bytes_, 0); }

void Frame::switch_to(const Program& program) {
  hand_over();
  const Plan& plan = *program_->plan;
  for (BufferId id : plan.buffers.ids()) {
    const PlannedBuffer& buffer = plan.buffers[id];
    const bool of_forward = buffer.first_step < plan.forward_steps &&
                            (is_kept_for_backward(buffer) || buffer.kind == BufferKind::Gradient);
    if (buffer.owned() && !of_forward) end(id);
  }
  program_ = &program;
  owned_.resize(program.plan->buffers.size());
  base_.resize(program.plan->buffers.size(), nullptr);
}

void Frame::clear() {
  for (Buffer& buffer : owned_) buffer = Buffer();
  live_bytes_ = taken_gradient_bytes_ = 0;
}

FrameContent Frame::content() const {
  FrameContent content{.held = {}, .live_bytes = live_bytes_, .peak_bytes = peak_bytes_};
  for (BufferId buffer : owned_.ids())
    if (owned_[buffer])
      content.held.push_back({buffer, owned_[buffer].data(), owned_[buffer].bytes()});
  return content;
}

void Frame::borrow(const FrameContent& content) {
  clear();
  for (const FrameContent::Held& held : content.held)
    replace(held.buffer, Buffer(held.data, held.bytes, nullptr, [](void*) {}));
  live_bytes_ = content.live_bytes;
  peak_bytes_ = content.peak_bytes;
}

void Frame::replace(BufferId buffer, Buffer memory) {
  owned_[buffer] = std::move(memory);
  base_[buffer] = owned_[buffer].data();
}

void Frame::restore(BufferId buffer, Buffer memory) { adopt(buffer, std::move(memory)); }

void execute(const Program& program, Frame& frame, KernelContext& context, int begin, int end,
             bool keep_saved) {
  const auto& buffers = program.plan->buffers;
  std::vector<TensorView> views(program.most_operands);
  std::vector<Buffer> results(program.most_results);
  for (int s = begin; s < end; ++s) {
    const ProgramStep& step = program.steps[static_cast<size_t>(s)];
    for (BufferId buffer : step.allocate) frame.begin(buffer);
    size_t count = 0;
    auto add = [&](const ProgramOperand& operand) {
      TensorView& view = views[count++];
      view = operand.view;
      if (operand.buffer && frame.base_[operand.buffer])
        view.data = static_cast<char*>(frame.base_[operand.buffer]) + operand.offset_bytes;
    };
    for (const ProgramOperand& operand : step.in) add(operand);
    for (const ProgramOperand& operand : step.out) add(operand);
    void* workspace = nullptr;
    if (step.workspace_buffer)
      workspace =
          static_cast<char*>(frame.base_[step.workspace_buffer]) + step.workspace_offset_bytes;
    for (Buffer& result : results) result = Buffer();
    const bool metered = step.inexact && context.meter;
    if (metered) context.meter->start();
    const KernelArgs args{*step.facts,
                          {views.data(), step.in.size()},
                          {views.data() + step.in.size(), step.out.size()},
                          workspace,
                          step.prepared,
                          context,
                          {results.data(), step.allocates_outputs ? step.out.size() : 0}};
    step.run(args);
    if (context.log) context.log->ran(step.run, args);
    int64_t library_bytes = step.library_bytes;
    if (metered)
      library_bytes =
          std::max(library_bytes, context.meter->stop(*step.facts, results, step.library_bytes));
    if (step.allocates_outputs)
      for (size_t i = 0; i < step.out.size(); ++i)
        // An unused output has no buffer and is freed here.
        if (results[i] && step.out[i].buffer)
          frame.adopt(step.out[i].buffer, std::move(results[i]));
    frame.count_library(library_bytes);
    for (BufferId buffer : step.release)
      if (!keep_saved || !is_kept_for_backward(buffers[buffer])) frame.end(buffer);
  }
}

}  // namespace ortmodule
