#include "runtime/program.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ortmodule {
namespace {

ProgramOperand operand_of(const Plan& plan, int tensor) {
  ProgramOperand operand;
  if (tensor < 0) return operand;
  const PlannedTensor& t = plan.tensors[static_cast<size_t>(tensor)];
  const PlannedStorage& storage = plan.storages[static_cast<size_t>(t.storage)];
  operand.view.dtype = t.dtype;
  operand.view.rank = static_cast<int>(t.layout.sizes.size());
  operand.view.sizes = t.layout.sizes.data();
  operand.view.strides = t.layout.strides.data();
  operand.buffer = storage.buffer;
  operand.offset_bytes =
      storage.offset_bytes + t.layout.offset * static_cast<int64_t>(size_of(t.dtype));
  // Empty tensors, and results that nobody reads, have no memory.
  ORTM_ASSERT(storage.buffer >= 0 || storage.bytes == 0, "storage of ", storage.name,
              " has no buffer");
  return operand;
}

}  // namespace

Program::Program(std::shared_ptr<const Plan> made) : plan(std::move(made)) {
  for (const PlannedStep& planned : plan->steps) {
    ProgramStep& step = steps.emplace_back();
    step.run = planned.kernel->run;
    step.library_bytes = planned.library_bytes;
    step.inexact = planned.kernel->inexact;
    step.gives_results = planned.kernel->gives_results;
    step.facts = &planned.facts;
    step.prepared = planned.prepared.get();
    for (int tensor : planned.in) step.in.push_back(operand_of(*plan, tensor));
    for (int tensor : planned.out) step.out.push_back(operand_of(*plan, tensor));
    if (planned.workspace_storage >= 0) {
      const auto& storage = plan->storages[static_cast<size_t>(planned.workspace_storage)];
      step.workspace_buffer = storage.buffer;
      step.workspace_offset_bytes = storage.offset_bytes;
    }
    step.allocate = &planned.allocate;
    step.release = &planned.release;
    most_operands = std::max(most_operands, step.in.size() + step.out.size());
    if (step.gives_results) most_results = std::max(most_results, step.out.size());
    for (const NodeFacts& node : planned.facts.nodes) random = random || node.attrs.has("rng");
  }
  argument_buffer.assign(plan->graph->inputs().size(), -1);
  argument_tensor.assign(plan->graph->inputs().size(), -1);
  gradient_tensor.assign(plan->graph->inputs().size(), -1);
  output_buffer.assign(plan->output_tensors.size(), -1);
  for (size_t b = 0; b < plan->buffers.size(); ++b) {
    const PlannedBuffer& buffer = plan->buffers[b];
    const auto index = static_cast<size_t>(buffer.index);
    if (!buffer.owned()) argument_buffer[index] = static_cast<int>(b);
    if (buffer.kind == BufferKind::Output) output_buffer[index] = static_cast<int>(b);
  }
  for (size_t t = 0; t < plan->tensors.size(); ++t) {
    const PlannedTensor& tensor = plan->tensors[t];
    const PlannedStorage& storage = plan->storages[static_cast<size_t>(tensor.storage)];
    if (storage.role != PlannedStorage::Role::Argument) continue;
    const auto index = static_cast<size_t>(storage.index);
    if (tensor.value == plan->graph->inputs()[index].value)
      argument_tensor[index] = static_cast<int>(t);
  }
  for (const PlannedGradient& gradient : plan->gradients)
    gradient_tensor[static_cast<size_t>(gradient.input)] = gradient.tensor;
  range_begin.push_back(plan->forward_steps);
  for (int r = 1; r < plan->ranges; ++r) {
    int at = range_begin.back();
    while (at < static_cast<int>(steps.size()) && plan->steps[static_cast<size_t>(at)].range < r)
      ++at;
    range_begin.push_back(at);
  }
  range_begin.push_back(static_cast<int>(steps.size()));
}

Frame::Frame(const Program& program, Allocator& allocator)
    : program_(&program), allocator_(allocator) {
  owned_.resize(program.plan->buffers.size());
  base_.assign(program.plan->buffers.size(), nullptr);
}

void Frame::begin(int buffer) {
  const PlannedBuffer& planned = program_->plan->buffers[static_cast<size_t>(buffer)];
  if (planned.kernel_allocated) return;
  const auto b = static_cast<size_t>(buffer);
  owned_[b] = allocator_.allocate(planned.bytes);
  base_[b] = owned_[b].data();
  live_bytes_ += planned.bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
}

void Frame::adopt(int buffer, Buffer result) {
  const auto b = static_cast<size_t>(buffer);
  owned_[b] = std::move(result);
  base_[b] = owned_[b].data();
  live_bytes_ += owned_[b].bytes();
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
}

void Frame::end(int buffer) {
  const auto b = static_cast<size_t>(buffer);
  if (!owned_[b]) return;
  live_bytes_ -= owned_[b].bytes();
  owned_[b] = Buffer();
  base_[b] = nullptr;
}

Buffer Frame::take(int buffer) { return std::move(owned_[static_cast<size_t>(buffer)]); }

Buffer Frame::take_gradient(int buffer) {
  taken_gradient_bytes_ += owned_[static_cast<size_t>(buffer)].bytes();
  return take(buffer);
}

void Frame::hand_over() { live_bytes_ -= std::exchange(taken_gradient_bytes_, 0); }

void Frame::switch_to(const Program& program) {
  hand_over();
  const Plan& plan = *program_->plan;
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    const PlannedBuffer& buffer = plan.buffers[b];
    const bool of_forward =
        buffer.first_step < plan.forward_steps &&
        (buffer.kind == BufferKind::Saved || buffer.kind == BufferKind::Gradient);
    if (buffer.owned() && !of_forward) end(static_cast<int>(b));
  }
  program_ = &program;
  owned_.resize(program.plan->buffers.size());
  base_.resize(program.plan->buffers.size(), nullptr);
}

void Frame::clear() {
  for (Buffer& buffer : owned_) buffer = Buffer();
}

FrameContent Frame::content() const {
  FrameContent content{.held = {}, .live_bytes = live_bytes_, .peak_bytes = peak_bytes_};
  for (size_t b = 0; b < owned_.size(); ++b)
    if (owned_[b])
      content.held.push_back({static_cast<int>(b), owned_[b].data(), owned_[b].bytes()});
  return content;
}

void Frame::borrow(const FrameContent& content) {
  clear();
  for (const FrameContent::Held& held : content.held)
    replace(held.buffer, Buffer(held.data, held.bytes, nullptr, [](void*) {}));
  live_bytes_ = content.live_bytes;
  peak_bytes_ = content.peak_bytes;
}

void Frame::replace(int buffer, Buffer memory) {
  const auto b = static_cast<size_t>(buffer);
  owned_[b] = std::move(memory);
  base_[b] = owned_[b].data();
}

void execute(const Program& program, Frame& frame, KernelContext& context, int begin, int end,
             bool keep_saved) {
  const std::vector<PlannedBuffer>& buffers = program.plan->buffers;
  std::vector<TensorView> views(program.most_operands);
  std::vector<Buffer> results(program.most_results);
  for (int s = begin; s < end; ++s) {
    const ProgramStep& step = program.steps[static_cast<size_t>(s)];
    for (int buffer : *step.allocate) frame.begin(buffer);
    size_t count = 0;
    auto add = [&](const ProgramOperand& operand) {
      TensorView& view = views[count++];
      view = operand.view;
      if (operand.buffer >= 0 && frame.base_[static_cast<size_t>(operand.buffer)])
        view.data = static_cast<char*>(frame.base_[static_cast<size_t>(operand.buffer)]) +
                    operand.offset_bytes;
    };
    for (const ProgramOperand& operand : step.in) add(operand);
    for (const ProgramOperand& operand : step.out) add(operand);
    void* workspace = nullptr;
    if (step.workspace_buffer >= 0)
      workspace = static_cast<char*>(frame.base_[static_cast<size_t>(step.workspace_buffer)]) +
                  step.workspace_offset_bytes;
    for (Buffer& result : results) result = Buffer();
    const bool metered = step.inexact && context.meter;
    if (metered) context.meter->start();
    const KernelArgs args{*step.facts,
                          {views.data(), step.in.size()},
                          {views.data() + step.in.size(), step.out.size()},
                          workspace,
                          step.prepared,
                          context,
                          {results.data(), step.gives_results ? step.out.size() : 0}};
    step.run(args);
    if (context.log) context.log->ran(step.run, args);
    int64_t library_bytes = step.library_bytes;
    if (metered)
      library_bytes =
          std::max(library_bytes, context.meter->stop(*step.facts, results, step.library_bytes));
    if (step.gives_results)
      for (size_t i = 0; i < step.out.size(); ++i)
        // A result that nobody reads has no buffer and ends here.
        if (results[i] && step.out[i].buffer >= 0)
          frame.adopt(step.out[i].buffer, std::move(results[i]));
    frame.count_library(library_bytes);
    for (int buffer : *step.release)
      if (!keep_saved || buffers[static_cast<size_t>(buffer)].kind != BufferKind::Saved)
        frame.end(buffer);
  }
}

}  // namespace ortmodule
